"""How long a step of so many sequences takes: medians by query tokens, refreshed online.

Knows numbers of rows and seconds; knows nothing of drafts, acceptance or devices. The curve need
not be smooth or linear: CPU kernels work in blocks of rows, GPUs in tiles, so the table keeps what
was measured and interpolates between it. Attention is the second factor: it grows with the context
that is read (once for each sequence) and with the rows that read it, whatever the curve says.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Weight of an observation of a well-known count of rows, and of the first one of a new count.
_RATE, _FIRST_RATE = 0.06, 0.3
# How much every other count moves with it: a busy machine slows all steps alike.
_COUPLING = 0.3
# Largest relative surprise that one observation may carry alone: a pause cannot bend the curve. A
# surprise that its two predecessors confirm carries as much as the middle one of the three, and
# moves everything faster.
_CLIP, _CONFIRMED_RATE = 0.1, 0.3
# Observations that a count which was only profiled counts as old.
_UNSEEN_AGE = 240
# Counts of rows up to here are told apart; beyond, counts this ratio apart.
_DENSE, _RATIO = 256, 1.1
# Least share of the measured curve that a shorter context may leave of it.
_ATTENTION_LEAVES = 0.2
# Observations that the attention fit remembers, and the prior that holds it at 0: so many of them
# that differed by so many context tokens.
_FIT_MEMORY, _FIT_PRIOR, _FIT_CONTEXT = 512.0, 16.0, 128.0


class CostCurve:
    """Seconds of a step of `query_tokens` rows: measured curve plus fitted attention.

    Attention corrects from the context at which it was measured to the context asked about. Build
    with `from_profile`, refresh with `observe`. Not thread-safe.
    """

    __slots__ = (
        "_clock",
        "_context",
        "_cross",
        "_dense",
        "_drift",
        "_drift_seen",
        "_first",
        "_knots",
        "_means",
        "_prior",
        "_seconds",
        "_seen",
        "_slopes",
        "_square",
        "_surprises",
        "_visits",
    )

    def __init__(
        self,
        knots: Floats,
        seconds: Floats,
        context: float,
        attention: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._knots = knots
        self._seconds = seconds
        # The first knot, and how many knots from it on are 1 apart.
        self._first = int(knots[0])
        self._dense = _consecutive(knots)
        self._context = context
        self._clock = 0
        self._surprises = (0.0, 0.0)
        # Sum of the moves that all counts shared, now and when each count was last confirmed.
        self._drift = 0.0
        self._drift_seen = [0.0] * len(knots)
        self._seen = [-_UNSEEN_AGE] * len(knots)
        self._visits = [0.0] * len(knots)
        # Seconds for each context token, and for each (context token, row of its sequence).
        self._slopes = attention
        self._prior = attention
        # Mean (context, relative seconds) of each knot, and moments of the deviations from them.
        self._means = [(0.0, 0.0)] * len(knots)
        self._square = [0.0, 0.0, 0.0]
        self._cross = [0.0, 0.0]

    @classmethod
    def from_profile(
        cls,
        profile: Mapping[int, float],
        context: int = 0,
        attention: tuple[float, float] = (0.0, 0.0),
    ) -> CostCurve:
        """A table from measured medians: seconds of a step by its number of query tokens.

        `context` is the total context length of the profiled steps; `attention` the seconds that
        each context token costs, and each (context token, row of its sequence), as far as known.
        Medians that fall with more rows are noise: neighbours are pooled until none does. Raises
        ValueError for an empty profile, a count below 1 or a time that is not positive and finite.
        """
        if not profile:
            raise ValueError("cost profile is empty; it needs at least one measured count of rows")
        for rows, seconds in profile.items():
            if rows < 1:
                raise ValueError(f"cost profile has {rows} query tokens; allowed: 1 or more")
            if not 0.0 < seconds < float("inf"):
                raise ValueError(
                    f"cost profile has {seconds} seconds at {rows} query tokens; "
                    "allowed: positive and finite"
                )
        counts = sorted(profile)
        knots = np.array(_counts(counts), dtype=np.float64)
        curve = np.interp(knots, counts, _monotone([profile[c] for c in counts]))
        return cls(knots, curve, float(context), attention)

    def seconds(self, query_tokens: int, sequences: int = 1, context: int = 0) -> float:
        """Expected seconds of a step of `query_tokens` rows of `sequences` over `context` tokens.

        `context` is the sum of the sequences' context lengths.
        """
        return self._at(query_tokens, sequences, context)

    def curve(self, first: int, count: int, sequences: int = 1, context: int = 0) -> Floats:
        """Expected seconds for `first`, `first` + 1, ... rows: [count], never falling."""
        result = self._measured(first, count)
        per_context, per_row = self._slopes
        if per_context or per_row:
            floor = _ATTENTION_LEAVES * result
            beyond = context - self._context
            slope = beyond * per_row / max(sequences, 1)
            result += beyond * per_context + slope * np.arange(first, first + count)
            if beyond < 0.0:
                np.maximum(result, floor, out=result)
                np.maximum.accumulate(result, out=result)
        return result

    def observe(self, query_tokens: int, sequences: int, context: int, seconds: float) -> None:
        """Take in one measured step; steps that also prefill do not belong here."""
        if query_tokens < 1 or seconds <= 0.0:
            return
        self._clock += 1
        self._grow(query_tokens)
        expected = self.seconds(query_tokens, sequences, context)
        surprise, middle = self._believe(seconds / expected - 1.0)
        left, share = self._locate(query_tokens)
        nearest = left if share < 0.5 else left + 1
        self._fit(nearest, query_tokens, sequences, context, expected * (1.0 + surprise))
        base = _CONFIRMED_RATE if abs(middle) > _CLIP else _RATE
        rate = max(base, _FIRST_RATE / (1.0 + self._visits[nearest]))
        self._visits[nearest] += 1.0
        self._drift += base * _COUPLING * surprise
        if abs(surprise) < _CLIP:
            self._seen[nearest] = self._clock
            self._drift_seen[nearest] = self._drift
        values = self._seconds
        lower = values[left] * (1.0 + rate * surprise * (1.0 - share))
        right = left + 1 if share else left
        upper = values[right] * (1.0 + rate * surprise * share) if share else lower
        values *= 1.0 + base * _COUPLING * surprise
        # The freshest measurement stands; older ones that contradict its order give way.
        values[left] = lower
        values[right] = max(lower, upper)
        np.minimum(values[:left], values[left], out=values[:left])
        np.maximum(values[right:], values[right], out=values[right:])

    def age(self, query_tokens: int) -> int:
        """How many observations ago a step of about so many rows was last measured as expected."""
        return self._clock - self._seen[self._nearest(query_tokens)]

    def drift(self, query_tokens: int) -> float:
        """How far, relatively, the curve has moved at so many rows on others' evidence alone."""
        return abs(self._drift - self._drift_seen[self._nearest(query_tokens)])

    def milliseconds(self) -> dict[int, float]:
        """The curve for people: {query tokens: milliseconds} at powers of two and its end."""
        last = int(self._knots[-1])
        counts = [2**i for i in range(last.bit_length()) if 2**i < last]
        return {n: round(self._milliseconds(n), 4) for n in [*counts, last]}

    def _measured(self, first: int, count: int) -> Floats:
        """The curve alone, at the context at which it stands: [count], the caller's own."""
        start = first - self._first
        if 0 <= start and start + count <= self._dense:
            # Every count has its knot here.
            return self._seconds[start : start + count].copy()
        rows = np.arange(first, first + count, dtype=np.float64)
        result: Floats = np.interp(rows, self._knots, self._seconds)
        last = float(self._knots[-1])
        if first + count - 1 > last:
            result += self._tail_slope() * np.maximum(rows - last, 0.0)
        return result

    def _at(self, query_tokens: int, sequences: int, context: int) -> float:
        """`seconds` without the guards of a curve: for one count alone."""
        start = query_tokens - self._first
        if 0 <= start < self._dense:
            result = float(self._seconds[start])
        else:
            result = float(self._measured(query_tokens, 1)[0])
        per_context, per_row = self._slopes
        moved = (context - self._context) * (
            per_context + per_row / max(sequences, 1) * query_tokens
        )
        return max(result + moved, _ATTENTION_LEAVES * result)

    def _milliseconds(self, query_tokens: int) -> float:
        return float(np.interp(query_tokens, self._knots, self._seconds)) * 1e3

    def _locate(self, query_tokens: int) -> tuple[int, float]:
        """The knot at or below so many rows, and how far towards the next they are (0 to 1)."""
        if 0 <= query_tokens - self._first < self._dense:
            return query_tokens - self._first, 0.0
        left = bisect_right(self._knots, query_tokens) - 1
        if left < 0:
            return 0, 0.0
        if left >= len(self._knots) - 1:
            return len(self._knots) - 1, 0.0
        low, high = float(self._knots[left]), float(self._knots[left + 1])
        return left, (query_tokens - low) / (high - low)

    def _tail_slope(self) -> float:
        """Seconds for each row beyond the last knot."""
        if len(self._knots) == 1:
            return float(self._seconds[0] / self._knots[0])
        rise = self._seconds[-1] - self._seconds[-2]
        return float(rise / (self._knots[-1] - self._knots[-2]))

    def _believe(self, surprise: float) -> tuple[float, float]:
        """What of a relative surprise is no passing pause, and the middle of the last three."""
        middle = sorted((*self._surprises, surprise))[1]
        self._surprises = (self._surprises[1], surprise)
        return min(max(surprise, min(-_CLIP, middle)), max(_CLIP, middle)), middle

    def _nearest(self, query_tokens: int) -> int:
        left, share = self._locate(query_tokens)
        return left if share < 0.5 else left + 1

    def _grow(self, query_tokens: int) -> None:
        last = float(self._knots[-1])
        if query_tokens < last * _RATIO or query_tokens <= last:
            return
        beyond = float(self._seconds[-1]) + self._tail_slope() * (query_tokens - last)
        if self._dense == len(self._knots) and query_tokens == last + 1.0:
            self._dense += 1
        self._knots = np.append(self._knots, float(query_tokens))
        self._seconds = np.append(self._seconds, beyond)
        self._seen.append(self._clock - _UNSEEN_AGE)
        self._drift_seen.append(self._drift)
        self._visits.append(0.0)
        self._means.append((0.0, 0.0))

    def _fit(self, knot: int, rows: float, sequences: int, context: float, seconds: float) -> None:
        """Learn attention from how steps of like counts differ in context.

        Only deviations within one knot count, so that the curve's own movement cannot hide them.
        """
        depth = rows / sequences
        keep = 1.0 - 1.0 / _FIT_MEMORY
        weight = 1.0 / (min(self._visits[knot], _FIT_MEMORY) + 1.0)
        mean = self._means[knot]
        moved, excess = context - mean[0], seconds - mean[1]
        self._means[knot] = (mean[0] + weight * moved, mean[1] + weight * excess)
        square, cross, damp = self._square, self._cross, 1.0 - weight
        square[0] = square[0] * keep + damp * moved * moved
        square[1] = square[1] * keep + damp * moved * moved * depth
        square[2] = square[2] * keep + damp * moved * moved * depth * depth
        cross[0] = cross[0] * keep + damp * moved * excess
        cross[1] = cross[1] * keep + damp * moved * depth * excess
        self._slopes = _nonnegative_fit(square, cross, _FIT_PRIOR * _FIT_CONTEXT**2, self._prior)
        # The reference follows the contexts that are measured; the curve moves along. One for all
        # counts: the order of theirs says something only at the same context.
        step = 0.1 * (context - self._context)
        self._context += step
        if self._slopes == (0.0, 0.0):
            return
        moved_curve = step * (self._slopes[0] + self._slopes[1] * self._knots / sequences)
        self._seconds = np.maximum.accumulate(
            np.maximum(self._seconds + moved_curve, _ATTENTION_LEAVES * self._seconds)
        )


def _counts(profiled: Sequence[int]) -> list[int]:
    """The counts that a table keeps: dense where few, then spaced evenly in ratio, the last too."""
    first, last = profiled[0], profiled[-1]
    counts = list(range(first, min(last, _DENSE) + 1)) or [first]
    while counts[-1] < last:
        counts.append(min(math.ceil(counts[-1] * _RATIO), last))
    return counts


def _consecutive(knots: Floats) -> int:
    """How many knots from the first on are 1 apart."""
    apart = np.flatnonzero(np.diff(knots) != 1.0)
    return int(apart[0]) + 1 if len(apart) else len(knots)


def _nonnegative_fit(
    square: list[float], cross: list[float], ridge: float, prior: tuple[float, float]
) -> tuple[float, float]:
    """Two-variable regression, drawn to `prior`, with both coefficients at least 0."""
    a, b, c = square[0] + ridge, square[1], square[2] + ridge
    x, y = cross[0] + ridge * prior[0], cross[1] + ridge * prior[1]
    determinant = a * c - b * b
    first = (c * x - b * y) / determinant
    second = (a * y - b * x) / determinant
    if first < 0.0:
        return 0.0, max(y / c, 0.0)
    if second < 0.0:
        return max(x / a, 0.0), 0.0
    return first, second


def _monotone(values: list[float]) -> list[float]:
    """The nearest never-falling sequence (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (high, m), (low, n) = pools[-2:]
            pools[-2:] = [((high * m + low * n) / (m + n), m + n)]
    return [mean for mean, size in pools for _ in range(size)]
