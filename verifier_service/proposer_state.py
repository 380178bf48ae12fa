"""What is told about a proposer: its state, what it was dropped for, log lines that do not flood.

Knows no protocol; the client counts here, the server and the metrics read it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from speculation.v1 import verifier_pb2

from verifier_service.proposer_pace import WaitHistogram

LOG_EVERY_S = 60.0


class LinkState(Enum):
    """`ProposerState.state` of verifier.proto."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    SLOW = "slow"
    REFUSED = "refused"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class ProposerState:
    """One proposer at one moment.

    `name` and `method` are empty until its first welcome; `detail` says why it is not simply
    connected. `dropped` counts blocks (or whole messages where they hold none) by reason,
    `lookahead_none` asks of which look-ahead had said that there is no draft, `lookahead_late`
    outcomes that came after their round, `unserved` sequences it could not take by reason.
    `wait_counts` has one entry for each of `proposer_pace.WAIT_BOUNDS_MS` and one for what
    is above.
    """

    name: str
    method: str
    address: str
    state: LinkState
    detail: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    unserved: dict[str, int] = field(default_factory=dict)
    draft_blocks: int = 0
    lookahead_hits: int = 0
    lookahead_misses: int = 0
    lookahead_none: int = 0
    lookahead_late: int = 0
    reconnects: int = 0
    faults: int = 0
    wait_count: int = 0
    wait_sum_ms: float = 0.0
    wait_counts: tuple[int, ...] = ()

    def to_proto(self) -> verifier_pb2.ProposerState:
        return verifier_pb2.ProposerState(
            name=self.name,
            method=self.method,
            address=self.address,
            state=self.state.value,
            detail=self.detail,
            dropped=self.dropped,
            draft_blocks=self.draft_blocks,
            lookahead_hits=self.lookahead_hits,
            lookahead_misses=self.lookahead_misses,
            lookahead_none=self.lookahead_none,
        )


def speculation_state(engine_state: str, proposers: Sequence[verifier_pb2.ProposerState]) -> str:
    """The engine's state, unless it would speculate and there is nobody to guess for it.

    Until steps were taken without drafts the engine cannot know that none will come.
    """
    drafting = (LinkState.CONNECTED.value, LinkState.SLOW.value)
    if engine_state != "on" or any(proposer.state in drafting for proposer in proposers):
        return engine_state
    if not proposers:
        return "off: no proposer attached"
    states = ", ".join(
        f"{proposer.name or proposer.address} {proposer.state}" for proposer in proposers
    )
    return f"off: no proposer can draft ({states})"


class KindLog:
    """One log line for each kind of event: at its first, then at most every 60 s with the count."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, subject: str, detail: str, now: float, count: int = 1) -> None:
        """`subject` is who, `detail` what; `now` in seconds."""
        told_at, pending = self._told.get(kind, (-LOG_EVERY_S, 0))
        pending += count
        if now - told_at < LOG_EVERY_S:
            self._told[kind] = (told_at, pending)
            return
        self._told[kind] = (now, 0)
        times = f" ({pending} since the last such line)" if pending > count else ""
        self._logger.warning("proposer %s: %s: %s%s", subject, kind, detail, times)


class ProposerRecord:
    """Sums over a proposer's whole life, reconnects included, and its log lines.

    `subject` names it in log lines, `now` is the client's time in seconds.
    """

    def __init__(self, subject: str, logger: logging.Logger) -> None:
        self.subject = subject
        self.now = 0.0
        self.dropped: Counter[str] = Counter()
        self.unserved: Counter[str] = Counter()
        self.draft_blocks = 0
        self.lookahead_hits = 0
        self.lookahead_misses = 0
        self.lookahead_none = 0
        self.lookahead_late = 0
        self.welcomes = 0
        self.faults = 0
        self.waits = WaitHistogram()
        self._log = KindLog(logger)

    def drop(self, reason: str, detail: str, count: int = 1) -> None:
        """Blocks (or one message without blocks) that were not taken."""
        self.dropped[reason] += count
        self.warn(f"dropped as {reason}", detail, count)

    def leave_out(self, reason: str, detail: str) -> None:
        """A sequence that is not sent to this proposer."""
        self.unserved[reason] += 1
        self.warn(f"not asked because of {reason}", detail)

    def fault(self, detail: str) -> None:
        """A sequence that the proposer wants opened again."""
        self.faults += 1
        self.warn("lost a sequence", detail)

    def warn(self, kind: str, detail: str, count: int = 1) -> None:
        """One log line for each kind; see `KindLog`."""
        self._log.warn(kind, self.subject, detail, self.now, count)
