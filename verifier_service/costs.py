"""How long one step of the target takes: measured medians by query tokens, refreshed online.

Knows numbers of rows and seconds; knows nothing of drafts, acceptance or devices. The curve need
not be smooth or linear: CPU kernels work in blocks of rows, GPUs in tiles, so the table keeps what
was measured and interpolates between it. Attention is the second factor: it grows with the context
that is read (once for each sequence) and with the rows that read it, whatever the curve says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Weight of one observation, and how much of it moves rows that it did not measure: a busy machine
# slows every step, so part of a surprise is about all of them.
_RATE = 0.1
_COUPLING = 0.3
# Largest relative surprise that one observation may carry; a pause cannot bend the curve.
_CLIP = 0.2
# Observations that the attention fit remembers, and the pseudo-observations that hold it at 0.
_FIT_MEMORY = 512.0
_FIT_PRIOR = 16.0
_CONTEXT_SCALE = 256.0
# An observation this much beyond the last measured count becomes a measured count of its own.
_GROWTH = 1.25


class CostTable:
    """Seconds of a step over `query_tokens` rows: curve(rows) + attention(context, rows).

    Build it with `from_profile`; `observe` refreshes it. Not thread-safe: one engine thread.
    """

    __slots__ = (
        "_clock",
        "_cross",
        "_knots",
        "_means",
        "_profile",
        "_seconds",
        "_seen",
        "_shift",
        "_slopes",
        "_square",
        "_weights",
    )

    def __init__(self, knots: Floats, seconds: Floats) -> None:
        self._knots = knots
        self._seconds = seconds
        self._profile = seconds.copy()
        self._clock = 0
        self._seen = [0] * len(knots)
        # Seconds for each context token, and for each (context token, row of its sequence).
        self._slopes = (0.0, 0.0)
        self._shift = 0.0
        # Within-knot moments of (context, context x rows, seconds) behind the slopes.
        self._weights = [0.0] * len(knots)
        self._means = [(0.0, 0.0, 0.0)] * len(knots)
        self._square = [0.0, 0.0, 0.0]
        self._cross = [0.0, 0.0]

    @classmethod
    def from_profile(cls, profile: Mapping[int, float]) -> CostTable:
        """A table from measured medians: seconds of a step by its number of query tokens.

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
        return cls(
            np.array(counts, dtype=np.float64),
            np.array(_monotone([profile[c] for c in counts]), dtype=np.float64),
        )

    def seconds(self, query_tokens: int, sequences: int = 1, context: int = 0) -> float:
        """Expected seconds of a step of `query_tokens` rows of `sequences` over `context` tokens.

        `context` is the sum of the sequences' context lengths.
        """
        return float(self.curve(query_tokens, 1, sequences, context)[0])

    def curve(self, first: int, count: int, sequences: int = 1, context: int = 0) -> Floats:
        """Expected seconds for `first`, `first` + 1, ... rows: [count], never falling."""
        rows = np.arange(first, first + count, dtype=np.float64)
        result: Floats = np.interp(rows, self._knots, self._seconds)
        last = self._knots[-1]
        if first + count - 1 > last:
            result += self._tail_slope() * np.maximum(rows - last, 0.0)
        per_context, per_row = self._slopes
        if per_context or per_row:
            fixed = self._shift + per_context * context
            attention = fixed + (per_row * context / max(sequences, 1)) * rows
            result = np.maximum(result + attention, 0.1 * result)
        return result

    def observe(self, query_tokens: int, sequences: int, context: int, seconds: float) -> None:
        """Take one measured step in. Steps that also prefill belong elsewhere."""
        if query_tokens < 1 or seconds <= 0.0:
            return
        self._clock += 1
        self._grow(query_tokens)
        expected = self.seconds(query_tokens, sequences, context)
        surprise = min(max(seconds / expected - 1.0, -_CLIP), _CLIP)
        left, share = self._locate(query_tokens)
        self._fit(
            left if share < 0.5 else left + 1,
            float(context),
            context * query_tokens / max(sequences, 1),
            expected * (1.0 + surprise) - self._profiled(query_tokens),
        )
        weights = np.full(len(self._knots), _COUPLING)
        weights[left] = max(1.0 - share, _COUPLING)
        if share:
            weights[left + 1] = max(share, _COUPLING)
        self._seconds *= 1.0 + _RATE * surprise * weights
        # The freshest measurement stands; older ones that contradict its order give way.
        right = left + 1 if share else left
        np.minimum(self._seconds[:left], self._seconds[left], out=self._seconds[:left])
        np.maximum(self._seconds[right:], self._seconds[left], out=self._seconds[right:])
        np.maximum(self._seconds[right + 1 :], self._seconds[right], out=self._seconds[right + 1 :])
        self._seen[left if share < 0.5 else left + 1] = self._clock

    def age(self, query_tokens: int) -> int:
        """How many observations ago a step of about so many rows was last measured."""
        left, share = self._locate(query_tokens)
        return self._clock - self._seen[left if share < 0.5 else left + 1]

    def milliseconds(self) -> dict[int, float]:
        """The curve at its measured counts, for people: {query tokens: milliseconds}."""
        pairs = zip(self._knots, self._seconds, strict=True)
        return {int(rows): round(float(seconds) * 1e3, 4) for rows, seconds in pairs}

    def to_dict(self) -> dict[str, object]:
        """Everything that `from_dict` needs, as JSON values; times are seconds."""
        return {
            "query_tokens": [int(k) for k in self._knots],
            "seconds": [float(s) for s in self._seconds],
            "seconds_per_context_token": self._slopes[0],
            "seconds_per_context_token_and_row": self._slopes[1],
            "seconds_shift": self._shift,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> CostTable:
        """The table that `to_dict` described. Raises ValueError where fields do not fit."""
        counts, seconds = data.get("query_tokens"), data.get("seconds")
        if not isinstance(counts, list) or not isinstance(seconds, list):
            raise ValueError("cost table needs lists `query_tokens` and `seconds`")
        table = cls.from_profile(dict(zip(counts, seconds, strict=True)))
        values = [
            data.get(name, 0.0)
            for name in (
                "seconds_per_context_token",
                "seconds_per_context_token_and_row",
                "seconds_shift",
            )
        ]
        per_context, per_row, shift = (v if isinstance(v, float) else 0.0 for v in values)
        table._slopes = (per_context, per_row)
        table._shift = shift
        return table

    def _locate(self, query_tokens: int) -> tuple[int, float]:
        """The knot at or below so many rows, and how far towards the next they are (0 to 1)."""
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

    def _profiled(self, query_tokens: int) -> float:
        return float(np.interp(query_tokens, self._knots, self._profile))

    def _grow(self, query_tokens: int) -> None:
        if query_tokens < self._knots[-1] * _GROWTH:
            return
        beyond = float(
            self._seconds[-1] + self._tail_slope() * (query_tokens - float(self._knots[-1]))
        )
        self._knots = np.append(self._knots, float(query_tokens))
        self._seconds = np.append(self._seconds, beyond)
        self._profile = np.append(self._profile, beyond)
        self._seen.append(0)
        self._weights.append(0.0)
        self._means.append((0.0, 0.0, 0.0))

    def _fit(self, knot: int, context: float, product: float, excess: float) -> None:
        """Learn the attention slopes from how steps of like row counts differ in context.

        Only differences within one knot count: the curve's own movement cannot hide them.
        """
        keep = 1.0 - 1.0 / _FIT_MEMORY
        weight = self._weights[knot] * keep + 1.0
        self._weights[knot] = weight
        mean = self._means[knot]
        old = (context - mean[0], product - mean[1], excess - mean[2])
        self._means[knot] = (
            mean[0] + old[0] / weight,
            mean[1] + old[1] / weight,
            mean[2] + old[2] / weight,
        )
        new = (1.0 - 1.0 / weight) * old[2]
        damp = 1.0 - 1.0 / weight
        square, cross = self._square, self._cross
        square[0] = square[0] * keep + old[0] * old[0] * damp
        square[1] = square[1] * keep + old[0] * old[1] * damp
        square[2] = square[2] * keep + old[1] * old[1] * damp
        cross[0] = cross[0] * keep + old[0] * new
        cross[1] = cross[1] * keep + old[1] * new
        slopes = _nonnegative_fit(square, cross, _FIT_PRIOR * _CONTEXT_SCALE**2)
        # What the slopes now say of the usual context must leave the curve there as it was.
        usual = self._means[knot]
        self._shift -= (slopes[0] - self._slopes[0]) * usual[0]
        self._shift -= (slopes[1] - self._slopes[1]) * usual[1]
        self._slopes = slopes


def _nonnegative_fit(square: list[float], cross: list[float], ridge: float) -> tuple[float, float]:
    """Two-variable ridge regression with both coefficients at least 0."""
    a, b, c = square[0] + ridge, square[1], square[2] + ridge
    determinant = a * c - b * b
    first = (c * cross[0] - b * cross[1]) / determinant
    second = (a * cross[1] - b * cross[0]) / determinant
    if first < 0.0:
        return 0.0, max(cross[1] / c, 0.0)
    if second < 0.0:
        return max(cross[0] / a, 0.0), 0.0
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
