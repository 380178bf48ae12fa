"""What may be spent on learning whether speculation would pay where it does not seem to.

Knows seconds only. Every step earns a small share of its own time; a probe is made when the sum
covers what it is expected to cost. So the loss from probing is bounded by the share whatever the
text is, and a cheap probe comes often, a dear one seldom.
"""

from __future__ import annotations

_MAX_SHARE = 0.015
_MIN_SHARE = 0.004
# Failed probes after which the share has halved.
_PATIENCE = 12.0
# Most steps' worth of time that may be saved up.
_MAX_SAVED_STEPS = 0.3


class ProbeBudget:
    """Seconds saved up for probes. The share falls as probes fail, and jumps back on a success."""

    __slots__ = ("_failures", "_saved", "_step_seconds")

    def __init__(self) -> None:
        self._saved = 0.0
        self._failures = 0
        self._step_seconds = 0.0

    @property
    def share(self) -> float:
        """Share of step time that probing may take now."""
        return max(_MIN_SHARE, _MAX_SHARE / (1.0 + self._failures / _PATIENCE))

    @property
    def saved(self) -> float:
        """Seconds that may be spent now; below 0 after a cost nobody could foresee."""
        return self._saved

    def earn(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._saved += self.share * step_seconds
        self._saved = min(self._saved, _MAX_SAVED_STEPS * step_seconds)

    def affords(self, seconds: float) -> bool:
        """Whether `seconds` may be spent. A full purse affords any probe, so none is ruled out."""
        return self._saved >= min(seconds, _MAX_SAVED_STEPS * self._step_seconds * 0.999)

    def spend(self, seconds: float) -> None:
        self._saved -= seconds

    def record(self, *, success: bool) -> None:
        """Take in how a probe ended; a success is at least one accepted draft."""
        self._failures = 0 if success else self._failures + 1
