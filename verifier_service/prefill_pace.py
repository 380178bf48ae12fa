"""How long prefill takes beside other work: seconds for each token and each earlier position.

Knows token counts, positions and measured seconds; does not know sequences or budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Steps that the fit remembers, and the prior that holds attention's share at 0: so many steps whose
# positions differed by so much.
_MEMORY, _PRIOR_STEPS, _PRIOR_SPREAD = 64.0, 4.0, 64.0
# Largest ratio to what was expected that one step may tell alone: a pause is not prefill.
_CLIP = 3.0
# Seconds that a token takes at least, alone and as a share of what was expected: what the rest of a
# step took is an estimate too, and may be too high.
_LEAST, _LEAST_SHARE = 1e-9, 0.01


class PrefillPace:
    """Seconds of a chunk = tokens x (a + b x mean position), both learnt; never negative.

    `per_token` is believed until the first observation. Not thread-safe.
    """

    def __init__(self, per_token: float) -> None:
        if not per_token > 0.0:
            raise ValueError(f"per_token is {per_token} seconds; allowed: above 0")
        self._a, self._b = per_token, 0.0
        # Seconds for each token of the step before, as measured.
        self._last = math.inf
        self._weight = 0.0
        # Decayed means and moments of mean position (x) and seconds for each token (y).
        self._x = self._y = self._xx = self._xy = 0.0

    def seconds(self, start: int, count: int) -> float:
        """Expected seconds of `count` tokens from position `start` on."""
        return count * (self._a + self._b * (start + count / 2))

    def fits(self, start: int, seconds: float) -> int:
        """Most tokens from position `start` on that are expected to take at most `seconds`."""
        if seconds <= 0.0:
            return 0
        first = self._a + self._b * start
        # Of n first + n n b / 2 = seconds the positive root, in the form that b = 0 does not break.
        return int(2.0 * seconds / (first + math.sqrt(first * first + 2.0 * self._b * seconds)))

    def observe(self, chunks: Sequence[tuple[int, int]], seconds: float) -> None:
        """Take in a step's chunks, (start, count) each, and the seconds that they added to it."""
        tokens = sum(count for _, count in chunks)
        if tokens < 1:
            return
        position = sum(count * (start + count / 2) for start, count in chunks) / tokens
        expected = self._a + self._b * position
        pace = max(seconds / tokens, _LEAST_SHARE * expected, _LEAST)
        believed = min(pace, max(expected * _CLIP, self._last))
        self._last = pace
        self._learn(position, believed)

    def _learn(self, x: float, y: float) -> None:
        self._weight = min(self._weight + 1.0, _MEMORY)
        rate = 1.0 / self._weight
        dx, dy = x - self._x, y - self._y
        self._x += rate * dx
        self._y += rate * dy
        self._xx = (1.0 - rate) * (self._xx + rate * dx * dx)
        self._xy = (1.0 - rate) * (self._xy + rate * dx * dy)
        prior = _PRIOR_STEPS / self._weight * _PRIOR_SPREAD**2
        self._b = max(self._xy / (self._xx + prior), 0.0)
        self._a = self._y - self._b * self._x
        if self._a <= 0.0:
            # All of it is attention, as far as can be told.
            self._b = self._y / self._x
            self._a = 0.0
