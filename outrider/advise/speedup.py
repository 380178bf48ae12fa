"""Expected speed-up of decoding over no speculation, from a tally and the cost of a step.

Knows counts and costs; knows no tokens. All rounds of the sample count alike and sequences are
independent of each other: the expected cost is exact for that, not for the average row count only,
since costs rise in steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.advise.costs import StepCost
from outrider.advise.replay import Tally

# Below this probability a count of rows is left out: its cost cannot show in the figures.
_NEGLIGIBLE = 1e-12

Floats = NDArray[np.float64]


def drafts_of_step(by_drafted: Sequence[int], sequences: int) -> Floats:
    """Probability of 0, 1, ... drafts in a step of so many sequences."""
    one = np.array(by_drafted, dtype=np.float64)
    one /= one.sum()
    result = np.ones(1)
    power = one
    left = sequences
    while left:
        if left & 1:
            result = np.convolve(result, power)
        left >>= 1
        if left:
            power = np.convolve(power, power)
    return result


def speedup(tally: Tally, cost: StepCost, sequences: int, draft_wait_ms: float = 0.0) -> float:
    """Tokens a second over plain decoding's, for so many sequences that decode at once.

    `draft_wait_ms` is added to every step; it needs a cost in milliseconds. 1.0 without rounds.
    """
    if not tally.rounds:
        return 1.0
    chances = drafts_of_step(tally.by_drafted, sequences)
    possible = np.flatnonzero(chances > _NEGLIGIBLE)
    costs = np.array(cost.curve(sequences + int(possible[-1])))
    expected = float((chances[possible] * costs[sequences + possible]).sum())
    plain = float(costs[sequences])
    return tally.tokens_per_round * plain / (expected + draft_wait_ms)
