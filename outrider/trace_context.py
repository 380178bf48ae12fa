"""W3C Trace Context as it travels: in HTTP headers, gRPC metadata and a proposer's messages.

Knows the header's form (https://www.w3.org/TR/trace-context/); imports no SDK, because a service
that emits nothing hands a client's context on all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# Longer ones may be dropped, says the standard; this one is never in the way of a request.
_MAX_TRACESTATE: Final = 512

_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-.*)?"
)
_STATE: Final = re.compile(r"[\x20-\x7e\t]*")
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A caller's context: `traceparent` is well-formed, or empty where there is none."""

    traceparent: str = ""
    tracestate: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the caller records this trace."""
        match = _PARENT.fullmatch(self.traceparent)
        return match is not None and bool(int(match["flags"], 16) & _SAMPLED)

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits, or empty."""
        match = _PARENT.fullmatch(self.traceparent)
        return match["trace"] if match is not None else ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """As gRPC metadata; empty where there is no context."""
        if not self.traceparent:
            return ()
        if not self.tracestate:
            return ((TRACEPARENT, self.traceparent),)
        return ((TRACEPARENT, self.traceparent), (TRACESTATE, self.tracestate))

    def carrier(self) -> Mapping[str, str]:
        """As a propagator reads it."""
        return dict(self.metadata())


NO_CONTEXT: Final = TraceContext()


def read_context(pairs: Iterable[tuple[str, str | bytes]]) -> TraceContext:
    """The context among headers or metadata with lower-case names.

    What is malformed counts as absent, as the standard has it: a trace is never worth a request.
    """
    parents: list[str] = []
    states: list[str] = []
    for name, value in pairs:
        if name == TRACEPARENT:
            parents.append(_text(value))
        elif name == TRACESTATE:
            states.append(_text(value))
    if len(parents) != 1 or not _well_formed(parents[0]):
        return NO_CONTEXT
    state = ",".join(states)
    if len(state) > _MAX_TRACESTATE or not _STATE.fullmatch(state):
        state = ""
    return TraceContext(parents[0], state)


def _well_formed(parent: str) -> bool:
    match = _PARENT.fullmatch(parent)
    if match is None or (parent.startswith("00") and match["more"]) or len(parent) > 255:
        return False
    return any(c != "0" for c in match["trace"]) and any(c != "0" for c in match["span"])


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
