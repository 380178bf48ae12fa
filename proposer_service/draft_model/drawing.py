"""A draft token drawn from a distribution that is told: for rules that accept by p/q.

Knows a draft model's likeliest tokens and what a request says of sampling; knows no engine. The q
that is sent is the q that was drawn from, whatever was cut off before (`outrider.sparse_q`). Draws
are keyed by where the block starts: a block that starts elsewhere draws anew, as the rules demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.sparse_q import quantise, sample
from proposer_service.proposers.base import SparseQ

# Tokens of one q: what is beyond them has little mass, and every entry travels.
ENTRIES = 32


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the tokens of one sequence are drawn; `temperature` is above 0."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    vocabulary_size: int

    def draw(
        self, top: Sequence[tuple[int, float]], base_length: int, offset: int
    ) -> tuple[int, SparseQ] | None:
        """Token `offset` of a block behind `base_length` ids, and its q.

        `top` are (id, log-probability), likeliest first. None where none of them is the target's.
        """
        known = [(i, value) for i, value in top if not 0 < self.vocabulary_size <= i]
        known = known[: min(self.top_k or ENTRIES, ENTRIES)]
        if not known:
            return None
        ids = [i for i, _ in known]
        scores = np.array([value for _, value in known]) / self.temperature
        weights = np.exp(scores - scores.max())
        # The fewest that hold a share of `top_p`, the likeliest always.
        before = np.cumsum(weights) - weights
        weights[1:][before[1:] >= self.top_p * weights.sum()] = 0.0
        places, masses = quantise(weights, ENTRIES)
        chosen = sample(masses, self.seed, base_length, offset)
        q = SparseQ(tuple(ids[place] for place in places.tolist()), tuple(masses.tolist()))
        return q.token_ids[chosen], q
