"""How long a step of so many sequences takes: medians by query tokens, refreshed online.

Knows numbers of rows and seconds; knows nothing of drafts, acceptance or devices. The curve need
not be smooth or linear: CPU kernels work in blocks of rows, GPUs in tiles, so the table keeps what
was measured and interpolates between it. Attention is the second factor: it grows with the context
that is read (once for each sequence) and with the rows that read it, whatever the curve says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from verifier_service.attention_cost import AttentionCost
from verifier_service.cost_profile import RATIO, Floats, consecutive, knots_of

__all__ = ["CostCurve", "Floats"]

# Weight of an observation of a well-known count of rows, and of the first one of a new count.
_RATE, _FIRST_RATE = 0.06, 0.3
# What of a count's observations is still known after each step at other counts.
_KNOWN_KEEP = 0.98
# How much every other count moves with it: a busy machine slows all steps alike. A count that was
# seen so often is half believed in that; what surprises at a new one is its own place in the curve.
_COUPLING, _HALF_KNOWN = 0.3, 2.0
# Largest relative surprise that one observation may carry alone: a pause cannot bend the curve. A
# surprise that its two predecessors confirm carries as much as the middle one of the three, and
# moves everything faster.
_CLIP, _CONFIRMED_RATE = 0.1, 0.3
# Observations that a count which was only profiled counts as old.
_UNSEEN_AGE = 60
# Least share of the measured curve that a shorter context may leave of it.
_ATTENTION_LEAVES = 0.2
# How fast the context at which the curve stands follows the contexts that are measured.
_CONTEXT_RATE = 0.1


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
        "_first",
        "_knots",
        "_known",
        "_known_at",
        "_seconds",
        "_seen",
        "_surprises",
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
        self._dense = consecutive(knots)
        self._context = context
        self._attention = AttentionCost(attention)
        self._clock = 0
        self._surprises = (0.0, 0.0)
        # Sum of the moves that all counts shared, now and when each count was last confirmed.
        self._drift = 0.0
        self._drift_seen = [0.0] * len(knots)
        self._seen = [-_UNSEEN_AGE] * len(knots)
        # Decayed observations of each count, and the clock as of which they are.
        self._known = [0.0] * len(knots)
        self._known_at = [0] * len(knots)

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
        return cls(knots, seconds, float(context), attention)

    def seconds(self, query_tokens: int, sequences: int = 1, context: int = 0) -> float:
        """Expected seconds of a step of `query_tokens` rows of `sequences` over `context` tokens.

        `context` is the sum of the sequences' context lengths.
        """
        start = query_tokens - self._first
        if 0 <= start < self._dense:
            result = float(self._seconds[start])
        else:
            result = float(self._measured(query_tokens, 1)[0])
        per_context, per_row = self._attention.slopes
        depth = query_tokens / max(sequences, 1)
        moved = (context - self._context) * (per_context + per_row * depth)
        return max(result + moved, _ATTENTION_LEAVES * result)

    def curve(self, first: int, count: int, sequences: int = 1, context: int = 0) -> Floats:
        """Expected seconds for `first`, `first` + 1, ... rows: [count], never falling."""
        result = self._measured(first, count)
        per_context, per_row = self._attention.slopes
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
        believed = expected * (1.0 + surprise)
        self._attention.learn(nearest, query_tokens / sequences, context, believed)
        self._follow_context(sequences, context)
        confirmed = abs(middle) > _CLIP
        base = _CONFIRMED_RATE if confirmed else _RATE
        known = self._known[nearest] * _KNOWN_KEEP ** (self._clock - self._known_at[nearest])
        rate = max(base, _FIRST_RATE / (1.0 + known))
        self._known[nearest] = known + 1.0
        self._known_at[nearest] = self._clock
        shared = base * _COUPLING * surprise
        if not confirmed:
            shared *= known / (known + _HALF_KNOWN)
        self._drift += shared
        if abs(surprise) < _CLIP:
            self._seen[nearest] = self._clock
            self._drift_seen[nearest] = self._drift
        values = self._seconds
        lower = values[left] * (1.0 + rate * surprise * (1.0 - share))
        right = left + 1 if share else left
        upper = values[right] * (1.0 + rate * surprise * share) if share else lower
        values *= 1.0 + shared
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
        if start >= 0 and start + count <= self._dense:
            # Every count has its knot here.
            return self._seconds[start : start + count].copy()
        rows = np.arange(first, first + count, dtype=np.float64)
        result: Floats = np.interp(rows, self._knots, self._seconds)
        last = float(self._knots[-1])
        if first + count - 1 > last:
            result += self._tail_slope() * np.maximum(rows - last, 0.0)
        return result

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
        if query_tokens < last * RATIO or query_tokens <= last:
            return
        beyond = float(self._seconds[-1]) + self._tail_slope() * (query_tokens - last)
        self._knots = np.append(self._knots, float(query_tokens))
        self._seconds = np.append(self._seconds, beyond)
        self._dense = consecutive(self._knots)
        self._seen.append(self._clock - _UNSEEN_AGE)
        self._drift_seen.append(self._drift)
        self._known.append(0.0)
        self._known_at.append(self._clock)

    def _follow_context(self, sequences: int, context: float) -> None:
        """Let the context at which the curve stands follow what is measured, the curve with it.

        One for all counts: the order of theirs says something only at the same context.
        """
        step = _CONTEXT_RATE * (context - self._context)
        self._context += step
        per_context, per_row = self._attention.slopes
        if step and (per_context or per_row):
            moved = step * (per_context + per_row * self._knots / sequences)
            self._seconds = np.maximum.accumulate(
                np.maximum(self._seconds + moved, _ATTENTION_LEAVES * self._seconds)
            )
