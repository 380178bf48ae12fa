"""What may be spent on learning whether speculation would pay where it does not seem to.

Knows seconds only. Every step earns a small share of its own time; a probe is made when the sum
covers what it is expected to cost. So the loss from probing is bounded by the share whatever the
text is, and a cheap probe comes often, a dear one seldom.
"""

from __future__ import annotations

from collections.abc import Sequence

# Share of step time for probes: at first, and at least however much speaks against them. What of
# it is left where blocks teach without being verified: a probe then tells of later drafts only.
_MAX_SHARE, _MIN_SHARE = 0.012, 0.005
_SHARE_WHEN_TOLD = 0.4
# Evidence against (in failed probes) after which the share has halved, and the most that counts.
_PATIENCE, _MOST_EVIDENCE = 12.0, 40.0
# Most steps' worth of time that may be saved up.
_MOST_SAVED = 0.3
# Most steps' worth of time that admitted drafts may owe: more is luck, and would end probing.
_MOST_OWED, _MUCH_OWED = 0.6, 0.3
# Most sequences probed in one step.
_MOST_PROBES = 8
# A row counts as free for a probe where it adds no more than this share of a plain step.
_FREE_ROW = 0.001
# Chance of acceptance that a step of not being verified weighs up to in the order of probes.
_CHANCE_PER_STEP = 1e-3


class ProbeBudget:
    """Seconds saved up for probes: a share of step time that falls as probes fail to pay.

    Drafts that were admitted and did not pay owe it what they lost, so that both together cost no
    more than the share. `told_free` says that blocks teach without being verified.
    """

    __slots__ = ("_against", "_owed", "_saved", "_step_seconds", "told_free")

    def __init__(self) -> None:
        self.told_free = False
        self._owed = 0.0
        self._saved = 0.0
        self._against = 0.0
        self._step_seconds = 0.0

    @property
    def share(self) -> float:
        """Share of step time that probing may take now."""
        share = max(_MIN_SHARE, _MAX_SHARE / (1.0 + self._against / _PATIENCE))
        return _SHARE_WHEN_TOLD * share if self.told_free else share

    @property
    def saved(self) -> float:
        """Seconds that may be spent now; below 0 after a cost that was not foreseen."""
        return self._saved

    @property
    def owes_much(self) -> bool:
        """Whether what was admitted lately did not pay: more than luck explains."""
        return self._owed > _MUCH_OWED * self._step_seconds > 0.0

    def earn(self, step_seconds: float) -> None:
        """Save this step's share, what is owed first."""
        self._step_seconds = step_seconds
        earned = self.share * step_seconds
        paid = min(self._owed, earned)
        self._owed -= paid
        self._saved = min(self._saved + earned - paid, _MOST_SAVED * step_seconds)

    def affords(self, seconds: float) -> bool:
        """Whether `seconds` may be spent. A full purse affords any probe: none is ruled out."""
        most = 0.99 * _MOST_SAVED * self._step_seconds
        return self._saved > 0.0 and self._saved >= min(seconds, most)

    def owe(self, seconds: float) -> None:
        """Take in what admitted drafts cost beyond what they emitted; below 0 where they paid."""
        self._owed = min(max(self._owed + seconds, 0.0), _MOST_OWED * self._step_seconds)

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


def choose_probes(
    budget: ProbeBudget,
    step: Sequence[float],
    token_seconds: float,
    counts: Sequence[int],
    lengths: Sequence[int],
    chances: Sequence[float],
    verified_at: Sequence[int],
) -> dict[int, tuple[int, float]]:
    """Rows to probe: {row: (drafts, seconds charged)}, taken from the budget.

    `step[n]` is the step's seconds with n drafts, `counts` the drafts admitted already; a row has
    `lengths` drafts, the first accepted with `chances`, and was last verified at step
    `verified_at`. First come rows that may soon pay or have waited long. Each gets one draft, and
    more where the step's time does not rise with them.
    """
    left = [row for row, count in enumerate(counts) if count == 0]
    used, last = sum(counts), len(step) - 1
    if not left or used >= last:
        return {}

    def affordable(chance: float) -> bool:
        cost = step[used + 1] - step[used]
        return budget.affords(max(cost - chance * token_seconds, 0.1 * cost))

    if not affordable(max(chances[row] for row in left)):
        return {}
    left.sort(key=lambda row: _CHANCE_PER_STEP * verified_at[row] - chances[row])
    probes: dict[int, tuple[int, float]] = {}
    for row in left[:_MOST_PROBES]:
        if used >= last or not affordable(chances[row]):
            break
        cost = step[used + 1] - step[used]
        budget.spend(cost)
        probes[row] = (1, cost)
        used += 1
    for row, (_, cost) in probes.items():
        drafts = 1
        while drafts < lengths[row] and used < last:
            if step[used + 1] - step[used] > _FREE_ROW * step[0]:
                break
            drafts += 1
            used += 1
        probes[row] = (drafts, cost)
    return probes
