"""Decayed counts of accepted drafts, in cells from coarse to fine, and the odds they come to.

Knows positions and buckets of one (proposer, greedy) pair; knows no blocks, sequences or time. A
cell holds a decayed Beta posterior of "accepted, given that the drafts before it were". Each cell
is drawn to the coarser one as far as it lacks trials of its own:

    proposer -> (+ greedy) -> (+ position) -> (+ match length) or (+ confidence)

Everything is plain lists: rounds come one by one, and at these sizes a list beats an array.
"""

from __future__ import annotations

# Match lengths 0 (no meaning), 1, 2, 3-4, 5-8, 9-16, 17 and more.
MATCH_EDGES = (1, 2, 3, 5, 9, 17)
MATCHES = len(MATCH_EDGES) + 1
# Confidence that the draft survives, given its predecessors did; bucket 0 means none was given.
CONFIDENCE_EDGES = (0.0, 0.3, 0.6, 0.8, 0.95)
CONFIDENCES = len(CONFIDENCE_EDGES) + 1
# Fine rows of a group: one for each bucket of match length, then one for each of confidence.
ROWS = MATCHES + CONFIDENCES

_PRIOR_MEAN = 0.6
_PRIOR_WEIGHT = 2.0
# Pseudo-trials with which a cell believes the cell above it.
_SHRINK = 5.0
# What a fading keeps.
_FADE = 0.85
_LOW, _HIGH = 0.002, 0.995


class Counts:
    """Trials and successes of a row of cells, by position."""

    __slots__ = ("successes", "trials")

    def __init__(self, positions: int) -> None:
        self.trials = [0.0] * positions
        self.successes = [0.0] * positions

    def learn(self, tried: int, right: int, memory: float) -> None:
        """Count the first `tried` positions, of which the first `right` were accepted."""
        trials, successes = self.trials, self.successes
        for position in range(tried):
            count = trials[position] + 1.0
            success = successes[position] + 1.0 if position < right else successes[position]
            if count > memory:
                success *= memory / count
                count = memory
            trials[position] = count
            successes[position] = success

    def count(self, position: int, success: float, memory: float) -> None:
        """Count one position."""
        trials = self.trials[position] + 1.0
        successes = self.successes[position] + success
        if trials > memory:
            successes *= memory / trials
            trials = memory
        self.trials[position] = trials
        self.successes[position] = successes

    def fade(self) -> None:
        self.trials = [_FADE * value for value in self.trials]
        self.successes = [_FADE * value for value in self.successes]

    def rates(self, parents: list[float]) -> list[float]:
        """Rates by position, each drawn to its parent's as far as it lacks trials of its own."""
        return [
            (success + _SHRINK * parent) / (trials + _SHRINK)
            for success, trials, parent in zip(self.successes, self.trials, parents, strict=True)
        ]


class Total:
    """Trials and successes of all positions together."""

    __slots__ = ("successes", "trials")

    def __init__(self) -> None:
        self.trials = 0.0
        self.successes = 0.0

    def learn(self, tried: int, right: int, memory: float) -> None:
        keep = min(1.0, memory / (self.trials + tried))
        self.trials = (self.trials + tried) * keep
        self.successes = (self.successes + right) * keep


class Group:
    """Cells of one (proposer, greedy) pair below its proposer's `total`, and odds from them.

    `odds` [ROWS][positions] are the acceptance odds of each fine row as `row` built them last.
    """

    __slots__ = (
        "_built",
        "_proposer",
        "_rates",
        "_rates_at",
        "_version",
        "by_position",
        "fresh",
        "odds",
        "rows",
        "total",
    )

    def __init__(self, positions: int, proposer: Total) -> None:
        self._proposer = proposer
        self.total = Total()
        # Trials that were not long ago, for optimism about what is not tried any more.
        self.fresh = 0.0
        self.by_position = Counts(positions)
        self.rows = [Counts(positions) for _ in range(ROWS)]
        self.odds: list[list[float]] = [[] for _ in range(ROWS)]
        # The cells' version, and that of which the rates and each row's odds were made.
        self._version = 1
        self._built = [0] * ROWS
        self._rates: list[float] = []
        self._rates_at = 0

    def learnt(self) -> None:
        """Say that cells changed."""
        self._version += 1

    def fade(self) -> None:
        """Let all cells but the coarsest forget a share of what they saw."""
        self.by_position.fade()
        for row in self.rows:
            row.fade()
        self._version += 1

    def rates(self) -> list[float]:
        """Acceptance by position, whatever the match."""
        if self._rates_at != self._version:
            above, total = self._proposer, self.total
            rate = above.successes + _PRIOR_WEIGHT * _PRIOR_MEAN
            rate /= above.trials + _PRIOR_WEIGHT
            rate = (total.successes + _SHRINK * rate) / (total.trials + _SHRINK)
            self._rates = self.by_position.rates([rate] * len(self.by_position.trials))
            self._rates_at = self._version
        return self._rates

    def current(self, row: int) -> list[float]:
        """The odds of a row, of the cells as they are; not the caller's own."""
        return self.odds[row] if self._built[row] == self._version else self.build(row)

    def build(self, row: int) -> list[float]:
        """The odds of a row from the cells as they are."""
        rates = self.rows[row].rates(self.rates())
        odds = [r / (1.0 - r) for r in [min(max(rate, _LOW), _HIGH) for rate in rates]]
        self.odds[row] = odds
        self._built[row] = self._version
        return odds
