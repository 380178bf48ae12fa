"""How long a step of so many sequences takes: medians by query tokens, refreshed online.

Knows numbers of rows and seconds; knows nothing of drafts, acceptance or devices. The curve need
not be smooth or linear: CPU kernels work in blocks of rows, GPUs in tiles, so each count of rows is
kept apart, as a factor on what was profiled; counts that were not measured lately take theirs from
those that were. Attention is the second factor: it grows with the context
that is read (once for each sequence) and with the rows that read it, whatever the curve says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from verifier_service.attention_cost import AttentionCost
from verifier_service.cost_pooling import FORGOTTEN, Pooling
from verifier_service.cost_profile import Floats, consecutive, knots_of

__all__ = ["CostCurve", "Floats"]

# Least weight of an observation of a count of rows: that of a well-known one.
_RATE = 0.06
# What of a count's observations is still known after each step.
_KNOWN_KEEP = 0.99
# Observations that a profiled count is worth.
_PROFILE_KNOWN = 2.0
# How much every other measured count moves with it: a busy machine slows all steps alike. A count
# that was seen so often is half believed in that; what surprises at a new one is its own place.
_COUPLING, _HALF_KNOWN = 0.3, 2.0
# Largest relative surprise that one observation may carry alone: a pause cannot bend the curve. A
# surprise that its two predecessors confirm carries as much as the middle one of the three, and
# moves everything faster.
_CLIP, _CONFIRMED_RATE = 0.1, 0.3
# The same for a count that was not measured before: nobody knows what to expect there.
_NEW_CLIP = 0.5
# Observations that a count which was only profiled counts as old, and one that was not even that.
_UNSEEN_AGE, _UNKNOWN_AGE = 60, 1000
# Least share of the measured curve that a shorter context may leave of it.
_ATTENTION_LEAVES = 0.2
# The context at which the curve stands moves half way to what is measured every so many steps.
_CONTEXT_EVERY, _CONTEXT_RATE = 8, 0.5


class CostCurve:
    """Seconds of a step of `query_tokens` rows: measured curve plus fitted attention.

    Attention corrects from the context at which it was measured to the context asked about. Build
    with `from_profile`, refresh with `observe`. Not thread-safe.
    """

    __slots__ = (
        "_attention",
        "_clock",
        "_context",
        "_dense",
        "_drift",
        "_drift_seen",
        "_factors",
        "_first",
        "_knots",
        "_known",
        "_pooling",
        "_seconds",
        "_seen",
        "_shape",
        "_surprises",
        "_top",
    )

    def __init__(
        self,
        knots: Floats,
        seconds: Floats,
        top: int,
        context: float,
        attention: tuple[float, float] = (0.0, 0.0),
        pooling: Pooling | None = None,
    ) -> None:
        self._knots = knots
        # What was profiled, and the curve: that times each count's factor.
        self._shape = seconds
        self._seconds = seconds.copy()
        # Most rows that were profiled or measured.
        self._top = top
        # The first knot, and how many knots from it on are 1 apart.
        self._first = int(knots[0])
        self._dense = consecutive(knots)
        self._context = context
        self._attention = AttentionCost(attention)
        self._clock = 0
        self._surprises = (0.0, 0.0)
        # Sum of the moves that all counts shared, now and when each count was last confirmed.
        self._drift = 0.0
        self._drift_seen = [0.0] * len(knots)
        self._seen = [-_UNSEEN_AGE] * len(knots)
        # Decayed observations of each count.
        self._known = np.zeros(len(knots))
        self._pooling = Pooling(knots) if pooling is None else pooling
        # What each count takes, over its shape; told only where it is known.
        self._factors = np.ones(len(knots))

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
        Raises ValueError for an empty profile, a count below 1 or a time that is not positive and
        finite.
        """
        knots, seconds = knots_of(profile)
        curve = cls(knots, seconds, max(profile), float(context), attention)
        curve._known[np.isin(knots, list(profile))] = _PROFILE_KNOWN
        return curve

    @property
    def attention(self) -> tuple[float, float]:
        """Seconds of each context token, and of each (context token, row of its sequence)."""
        return self._attention.slopes

    def derived(self) -> CostCurve:
        """A curve that begins as this one is, of which nothing was measured yet."""
        curve = CostCurve(
            self._knots,
            self._seconds.copy(),
            self._top,
            self._context,
            self._attention.slopes,
            self._pooling.derived(),
        )
        curve._seen = [-_UNKNOWN_AGE] * len(curve._seen)
        return curve

    def seconds(self, query_tokens: int, sequences: int = 1, context: int = 0) -> float:
        """Expected seconds of a step of `query_tokens` rows of `sequences` over `context` tokens.

        `context` is the sum of the sequences' context lengths.
        """
        start = query_tokens - self._first
        if 0 <= start < self._dense:
            result = float(self._seconds[start])
        else:
            result = float(self._standing(query_tokens, 1)[0])
        per_context, per_row = self._attention.slopes
        depth = query_tokens / max(sequences, 1)
        moved = (context - self._context) * (per_context + per_row * depth)
        return max(result + moved, _ATTENTION_LEAVES * result)

    def curve(self, first: int, count: int, sequences: int = 1, context: int = 0) -> Floats:
        """Expected seconds for `first`, `first` + 1, ... rows: [count], never falling."""
        result = self._standing(first, count)
        per_context, per_row = self._attention.slopes
        if per_context or per_row:
            floor = _ATTENTION_LEAVES * result
            beyond = context - self._context
            slope = beyond * per_row / max(sequences, 1)
            result += beyond * per_context + slope * self._rows(first, count)
            if beyond < 0.0:
                np.maximum(result, floor, out=result)
                np.maximum.accumulate(result, out=result)
        return result

    def observe(self, query_tokens: int, sequences: int, context: int, seconds: float) -> None:
        """Take in one measured step; steps that also prefill do not belong here."""
        if query_tokens < 1 or seconds <= 0.0:
            return
        self._clock += 1
        self._top = max(self._top, query_tokens)
        expected = self.seconds(query_tokens, sequences, context)
        nearest = self._nearest(query_tokens)
        known = float(self._known[nearest])
        surprise, middle = self._believe(seconds / expected - 1.0, known)
        believed = expected * (1.0 + surprise)
        self._attention.learn(nearest, query_tokens, sequences, context, believed)
        if self._clock % _CONTEXT_EVERY == 0:
            self._follow_context(sequences, context)
        confirmed = abs(middle) > _CLIP
        base = _CONFIRMED_RATE if confirmed else _RATE
        rate = max(base, 1.0 / (1.0 + known))
        self._known *= _KNOWN_KEEP
        self._known[nearest] += 1.0
        shared = base * _COUPLING * surprise * known / (known + _HALF_KNOWN)
        self._drift += shared
        if abs(surprise) < _CLIP:
            self._seen[nearest] = self._clock
            self._drift_seen[nearest] = self._drift
        now = float(self._seconds[nearest] / self._shape[nearest])
        own = float(self._factors[nearest]) if known > FORGOTTEN else now
        self._factors *= 1.0 + shared
        self._factors[nearest] = own + rate * (now * (1.0 + surprise) - own)
        values = self._pooling.factors(self._known, self._factors)
        values *= self._shape
        # The freshest measurement stands; older ones that contradict its order give way.
        np.minimum(values[:nearest], values[nearest], out=values[:nearest])
        np.maximum(values[nearest:], values[nearest], out=values[nearest:])
        np.maximum.accumulate(values, out=values)
        self._seconds = values

    def age(self, query_tokens: int) -> int:
        """How many observations ago a step of about so many rows was last measured as expected."""
        return self._clock - self._seen[self._nearest(query_tokens)]

    def known(self, query_tokens: int) -> float:
        """Decayed number of observations of about so many rows."""
        return float(self._known[self._nearest(query_tokens)])

    def drift(self, query_tokens: int) -> float:
        """How far, relatively, the curve has moved at so many rows on others' evidence alone."""
        return abs(self._drift - self._drift_seen[self._nearest(query_tokens)])

    def milliseconds(self) -> dict[int, float]:
        """The curve for people: {query tokens: milliseconds} at powers of two and its end."""
        last = self._top
        counts = [2**i for i in range(last.bit_length()) if 2**i < last]
        return {n: round(self._milliseconds(n), 4) for n in [*counts, last]}

    def _rows(self, first: int, count: int) -> Floats:
        """`first`, `first` + 1, ...: [count], not the caller's own."""
        start = first - self._first
        if start >= 0 and start + count <= self._dense:
            return self._knots[start : start + count]
        return np.arange(first, first + count, dtype=np.float64)

    def _standing(self, first: int, count: int) -> Floats:
        """The curve alone, at the context at which it stands: [count], the caller's own."""
        start = first - self._first
        if start >= 0 and start + count <= self._dense:
            # Every count has its knot here.
            return self._seconds[start : start + count].copy()
        rows = self._rows(first, count)
        result: Floats = np.interp(rows, self._knots, self._seconds)
        last = float(self._knots[-1])
        if first + count - 1 > last:
            result += self._tail_slope() * np.maximum(rows - last, 0.0)
        return result

    def _milliseconds(self, query_tokens: int) -> float:
        return float(np.interp(query_tokens, self._knots, self._seconds)) * 1e3

    def _tail_slope(self) -> float:
        """Seconds for each row beyond the last knot."""
        rise = self._seconds[-1] - self._seconds[-2]
        return float(rise / (self._knots[-1] - self._knots[-2]))

    def _believe(self, surprise: float, known: float) -> tuple[float, float]:
        """What of a relative surprise is no passing pause, and the middle of the last three."""
        middle = sorted((*self._surprises, surprise))[1]
        self._surprises = (self._surprises[1], surprise)
        clip = _CLIP if known >= 1.0 else _NEW_CLIP
        return min(max(surprise, min(-clip, middle)), max(clip, middle)), middle

    def _nearest(self, query_tokens: int) -> int:
        """The knot nearest to so many rows."""
        if 0 <= query_tokens - self._first < self._dense:
            return query_tokens - self._first
        right = min(bisect_right(self._knots, query_tokens), len(self._knots) - 1)
        left = max(right - 1, 0)
        nearer_left = query_tokens - self._knots[left] < self._knots[right] - query_tokens
        return left if nearer_left else right

    def _follow_context(self, sequences: int, context: float) -> None:
        """Let the context at which the curve stands follow what is measured, the curve with it.

        One for all counts: the order of theirs says something only at the same context.
        """
        step = _CONTEXT_RATE * (context - self._context)
        self._context += step
        per_context, per_row = self._attention.slopes
        if step and (per_context or per_row):
            moved = step * (per_context + per_row * self._knots / sequences)
            for values in (self._shape, self._seconds):
                np.maximum(values + moved, _ATTENTION_LEAVES * values, out=values)
                np.maximum.accumulate(values, out=values)
