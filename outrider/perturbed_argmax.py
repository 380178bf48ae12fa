"""The argmax of scores plus shared noise, on a CPU, without making all of the noise.

A token wins with a large score or with large noise. Noise above `_LEAD` has a leading byte of
zero, so a row needs the leading bytes of all its tokens (a quarter of the words) and the whole
noise of few: those with leading byte zero, and those whose score alone comes within `_LEAD` of a
score already reached. No other token can win; the answer is that of the full computation.

Knows numpy only: the verifier's CPU path and coupled proposers both call it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.coupling import GROUP_SIZE, GROUPS_FROM, Keys, exponential, hashes, noise_bits, words

# Noise of the first value with leading byte 1, and a little for rounding.
_LEAD = float(-np.log(-np.log1p(-(2.0**-8)))) + 1e-3
# Elements worked on at once: what a core's second-level cache holds.
_CHUNK = 1 << 18

Ids = npt.NDArray[np.int64]
Scores = npt.NDArray[np.floating]


class PerturbedArgmax:
    """Chooses tokens of one vocabulary; holds its hashes and scratch, so not for two threads."""

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size {vocab_size}: must be at least 1")
        groups = -(-vocab_size // GROUP_SIZE)
        self._vocab_size = vocab_size
        self._rows = max(1, _CHUNK // vocab_size)
        self._groups = hashes(GROUPS_FROM + np.arange(groups, dtype=np.int64))
        self._words = np.empty((self._rows, groups), dtype="<u4")
        self._scratch = np.empty((self._rows, groups), dtype=np.uint32)

    def of_scores(self, scores: Scores, key: Keys) -> Ids:
        """argmax over v of scores[r, v] + g[r, v], int64 [R]: v with probability ~ e^score.

        scores [R, V], keys [R] each. Tokens of score -inf are never chosen; among equal sums
        the lowest id is.
        """
        return self._all(scores, key, log=False)

    def of_weights(self, weights: Scores, key: Keys) -> Ids:
        """argmax over v of log weights[r, v] + g[r, v], int64 [R]: v with probability ~ weight.

        weights [R, V], at least 0, one of each row above 0; they need not be normalised.
        """
        return self._all(weights, key, log=True)

    def _all(self, values: Scores, key: Keys, log: bool) -> Ids:
        result = np.empty(values.shape[0], dtype=np.int64)
        for start in range(0, len(result), self._rows):
            part = slice(start, start + self._rows)
            result[part] = self._some(values[part], (key[0][part], key[1][part]), log)
        return result

    def _some(self, values: Scores, key: Keys, log: bool) -> Ids:
        count, vocab = values.shape
        every = np.arange(count)
        # The largest score's sum is a bound that the winner reaches.
        top = values.argmax(axis=1)
        reached = self._sums(values, key, every, top, log)
        bound = (np.exp(reached - _LEAD) if log else reached - _LEAD).astype(values.dtype)
        columns = (key[0][:, None], key[1][:, None])
        lead = words(columns, self._groups, self._words[:count], self._scratch[:count])
        candidate = lead.view(np.uint8)[:, :vocab] == 0
        candidate |= values >= bound[:, None]
        candidate[every, top] = True
        flat = np.flatnonzero(candidate)
        rows = flat // vocab
        ids = flat - rows * vocab
        sums = self._sums(values, key, rows, ids, log)
        best = np.maximum.reduceat(sums, np.searchsorted(rows, every))
        winners = np.flatnonzero(sums == best[rows])
        first: Ids = ids[winners[np.searchsorted(rows[winners], every)]]
        return first

    def _sums(self, values: Scores, key: Keys, rows: Ids, ids: Ids, log: bool) -> Scores:
        noise = np.log(exponential(noise_bits((key[0][rows], key[1][rows]), ids)))
        picked = values[rows, ids]
        if log:
            with np.errstate(divide="ignore"):
                picked = np.log(picked)
        sums: Scores = picked - noise
        # A broken model's NaN wins, as in any argmax, and does not break the search.
        sums[np.isnan(sums)] = np.inf
        return sums
