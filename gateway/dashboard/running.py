"""Which requests this gateway is answering now.

Knows ids, ages and counts; sees neither prompts nor answers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

# More are counted, not listed.
MAX_LISTED: Final = 100


class Growing(Protocol):
    """A choice as it grows."""

    @property
    def prompt_tokens(self) -> int:
        """0 until its first token."""

    @property
    def completion_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class RunningRequest:
    """One HTTP request. `arrived` is time.monotonic seconds; `choices` are read, never kept."""

    request_id: str
    model: str
    route: str
    stream: bool
    arrived: float
    choices: Sequence[Growing]

    def shown(self, now: float) -> dict[str, Any]:
        """The request at `now`, as the page lists it."""
        begun = any(choice.prompt_tokens for choice in self.choices)
        return {
            "request_id": self.request_id,
            "model": self.model,
            "route": self.route,
            "stream": self.stream,
            "state": "running" if begun else "waiting",
            "age_s": round(max(now - self.arrived, 0.0), 3),
            "choices": len(self.choices),
            "prompt_tokens": max((c.prompt_tokens for c in self.choices), default=0),
            "completion_tokens": sum(c.completion_tokens for c in self.choices),
        }


class RunningRequests:
    """The requests between their arrival and their last byte, oldest first."""

    def __init__(self) -> None:
        self._requests: dict[RunningRequest, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @contextlib.contextmanager
    def listed(self, request: RunningRequest) -> Iterator[None]:
        """`request` runs as long as the block does."""
        self._requests[request] = None
        try:
            yield
        finally:
            del self._requests[request]

    def shown(self, now: float | None = None) -> list[dict[str, Any]]:
        """The oldest ones; `now` is time.monotonic seconds."""
        at = time.monotonic() if now is None else now
        oldest = [r for r, _ in zip(self._requests, range(MAX_LISTED), strict=False)]
        return [request.shown(at) for request in oldest]
