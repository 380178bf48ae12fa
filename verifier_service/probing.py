"""What may be spent on learning whether speculation would pay where it does not seem to.

Knows seconds only. Every step earns a small share of its own time; a probe is made when the sum
covers what it is expected to cost. So the loss from probing is bounded by the share whatever the
text is, and a cheap probe comes often, a dear one seldom.
"""

from __future__ import annotations

# Share of step time for probes: at first, and at least however much speaks against them.
_MAX_SHARE, _MIN_SHARE = 0.012, 0.005
# Evidence against (in failed probes) after which the share has halved, and the most that counts.
_PATIENCE, _MOST_EVIDENCE = 12.0, 40.0
# Most steps' worth of time that may be saved up.
_MOST_SAVED = 0.3


class ProbeBudget:
    """Seconds saved up for probes: a share of step time that falls as probes fail to pay."""

    __slots__ = ("_against", "_saved", "_step_seconds")

    def __init__(self) -> None:
        self._saved = 0.0
        self._against = 0.0
        self._step_seconds = 0.0

    @property
    def share(self) -> float:
        """Share of step time that probing may take now."""
        return max(_MIN_SHARE, _MAX_SHARE / (1.0 + self._against / _PATIENCE))

    @property
    def saved(self) -> float:
        """Seconds that may be spent now; below 0 after a cost that was not foreseen."""
        return self._saved

    def earn(self, step_seconds: float) -> None:
        """Save this step's share."""
        self._step_seconds = step_seconds
        self._saved = min(self._saved + self.share * step_seconds, _MOST_SAVED * step_seconds)

    def affords(self, seconds: float) -> bool:
        """Whether `seconds` may be spent. A full purse affords any probe: none is ruled out."""
        return self._saved >= min(seconds, 0.99 * _MOST_SAVED * self._step_seconds)

    def spend(self, seconds: float) -> None:
        self._saved -= seconds

    def record(self, accepted: int, cost: float, token_seconds: float) -> None:
        """Take in how a probe that cost `cost` seconds ended; what it emitted is paid back.

        So the budget bounds what probing really loses, and a probe that pays is followed at once.
        The evidence is a sum that never falls below 0, so that old failures cannot outweigh a
        change; it drifts up while less than half of what would pay is accepted.
        """
        returned = accepted * token_seconds
        self._saved = min(self._saved + returned, _MOST_SAVED * self._step_seconds)
        evidence = self._against + 1.0 - 2.0 * returned / max(cost, 1e-9)
        self._against = min(max(evidence, 0.0), _MOST_EVIDENCE)
