"""Short periods of plain decoding, and how much faster the steps around them were.

The controller's gains are promises: they know the forward and the asking, not what drafting takes
from everything else on the machine. Since drafts never change the output, a verifier may leave
them out for some steps and compare: neighbours in time, the same sequences, all that there is
between two steps included. Knows step times and counts; knows no drafts, engine or clock.

The worse of the two, drafts or none, gets so few steps that the loss stays below a fixed share of
the time (a bandit with two arms and a bounded regret).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

# Steps compared in a period, and as many before and after it.
_STEPS = 16
# What the worse arm may cost, as a share of the time, and the least and most share of its steps.
_LOSS, _LEAST, _MOST = 0.004, 0.005, 0.5
# Weight of one comparison in the average, at least; and what the controller's promise counts for
# at first, in comparisons.
_RATE, _PRIOR = 0.15, 2.0
# A comparison counts as no more than this (in the logarithm of a ratio): the rest is noise.
_CLIP = 0.7
# A step that takes so many times the median of its period was interrupted.
_PAUSE = 3.0
# Least share of a period's steps that must have neighbours with as many sequences.
_MATCHED = 0.5


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """What speculation gained over plain periods, since start (0.2: a fifth more tokens a second).

    `error` is the standard error of `gain`, `periods` the number of comparisons.
    """

    gain: float = 0.0
    error: float = 0.0
    periods: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    sequences: int
    tokens: int
    seconds: float


class PlainPeriods:
    """Says which steps decode plainly, and what the others gain.

    `share` of the steps is plain; None: as the measured gain allows. 0 turns it off. Call order
    for each step: `begin`, then `observe` unless it prefilled or nothing decoded. Not thread-safe.
    """

    def __init__(self, share: float | None = None) -> None:
        if share is not None and not 0.0 <= share <= 0.5:
            raise ValueError(f"the share of plain steps is {share}; allowed: 0 to 0.5")
        self._share = share
        self._plain = False
        # Steps of this period that are left, and that it has in all.
        self._left = self._length = _STEPS + 1
        self._fresh = True
        self._before: deque[_Step] = deque(maxlen=_STEPS)
        self._middle: deque[_Step] = deque(maxlen=_STEPS)
        # The period that `_before` and `_middle` are, drafts or none, once there are both.
        self._now: deque[_Step] = deque(maxlen=_STEPS)
        self._gains: dict[int, _Average] = {}
        self._octave = 1
        # Sums over all comparisons: weights, weighted logarithms, and their squares.
        self._weight = self._sum = self._squares = 0.0
        self._weights_squared = 0.0
        self._periods = 0

    @property
    def loses(self) -> float:
        """What drafts cost by the last comparisons, as a share of the speed; 0 where they gain."""
        gain = self._gains.get(self._octave)
        return 0.0 if gain is None or not gain.known else max(-math.expm1(gain.mean), 0.0)

    @property
    def measured(self) -> MeasuredGain:
        if self._periods == 0:
            return MeasuredGain()
        mean = self._sum / self._weight
        spread = max(self._squares / self._weight - mean * mean, 0.0)
        # Weighted comparisons are worth fewer equal ones.
        worth = self._weight * self._weight / self._weights_squared
        error = math.sqrt(spread / max(worth - 1.0, 1.0))
        gain = math.expm1(mean)
        return MeasuredGain(gain, error * (1.0 + gain), self._periods)

    def begin(self, sequences: int, promised: float, *, speculating: bool) -> bool:
        """Whether the step is to decode plainly.

        `sequences` decode now; `promised` is the controller's average gain. While it is not
        `speculating` anyway there is nothing to compare.
        """
        if self._share == 0.0 or not speculating or sequences <= 0:
            self._reset()
            return False
        self._octave = sequences.bit_length()
        gain = self._gains.get(self._octave)
        if gain is None:
            gain = self._gains[self._octave] = _Average(math.log1p(max(promised, -0.5)))
        if self._left <= 0:
            self._turn(gain.mean)
        return self._plain

    def observe(self, sequences: int, tokens: int, seconds: float) -> None:
        """Take in the step: `tokens` of so many sequences, `seconds` since the last one ended."""
        self._left -= 1
        if self._fresh:
            # What the change itself costs belongs to neither.
            self._fresh = False
            return
        self._now.append(_Step(sequences, tokens, seconds))
        if len(self._now) == _STEPS:
            self._compare()

    def _turn(self, mean: float) -> None:
        """Begin the other period."""
        self._plain = not self._plain
        self._before, self._middle, self._now = self._middle, self._now, deque(maxlen=_STEPS)
        if self._length > 2 * _STEPS:
            # What was before so long a period is no neighbour of its end.
            self._before.clear()
        worse = min(max(_LOSS / max(abs(mean), 1e-9), _LEAST), _MOST)
        plain = (worse if mean > 0.0 else 1.0 - worse) if self._share is None else self._share
        mine = plain if self._plain else 1.0 - plain
        # The rarer of the two gets one period's length, the other so many times that.
        self._left = self._length = 1 + round(_STEPS * max(mine / (1.0 - mine), 1.0))
        self._fresh = True

    def _compare(self) -> None:
        """The period between two of the other kind is compared with both of them."""
        if len(self._before) < _STEPS or len(self._middle) < _STEPS:
            return
        around = [*self._before, *self._now]
        found = _log_ratio(self._middle, around)
        # Once for each three periods, though the last one goes on.
        self._before.clear()
        if found is None:
            return
        ratio, seconds = found
        # `_plain` is what now runs, around the period in the middle.
        gained = ratio if self._plain else -ratio
        gained = min(max(gained, -_CLIP), _CLIP)
        self._gains[self._octave].add(gained)
        self._periods += 1
        self._weight += seconds
        self._sum += seconds * gained
        self._squares += seconds * gained * gained
        self._weights_squared += seconds * seconds

    def _reset(self) -> None:
        if self._plain or self._now or self._middle:
            self._plain = False
            self._left = self._length = _STEPS + 1
            self._fresh = True
            self._before.clear()
            self._middle.clear()
            self._now.clear()


class _Average:
    """A decayed average of logarithms of ratios, begun with a promise."""

    __slots__ = ("_count", "mean")

    def __init__(self, promised: float) -> None:
        self.mean = promised
        self._count = _PRIOR

    @property
    def known(self) -> bool:
        """Whether it is more than the promise."""
        return self._count > _PRIOR

    def add(self, value: float) -> None:
        self._count += 1.0
        self.mean += max(1.0 / self._count, _RATE) * (value - self.mean)


def _log_ratio(inner: Iterable[_Step], outer: Iterable[_Step]) -> tuple[float, float] | None:
    """Logarithm of the inner steps' tokens a second over the outer ones', and seconds compared.

    Only steps of as many sequences are; None where there are too few.
    """
    mine, theirs = _by_sequences(inner), _by_sequences(outer)
    total = weight = 0.0
    matched = 0
    for sequences, (tokens, seconds, count) in mine.items():
        other = theirs.get(sequences)
        if other is None:
            continue
        least = min(seconds, other[1])
        total += least * math.log(tokens / seconds * other[1] / other[0])
        weight += least
        matched += count
    if matched < _MATCHED * _STEPS:
        return None
    return total / weight, weight


def _by_sequences(steps: Iterable[_Step]) -> dict[int, tuple[float, float, int]]:
    """{sequences: (tokens, seconds, steps)}, pauses cut."""
    by: defaultdict[int, list[_Step]] = defaultdict(list)
    for step in steps:
        by[step.sequences].append(step)
    result = {}
    for sequences, some in by.items():
        most = _PAUSE * median(step.seconds for step in some)
        seconds = sum(min(step.seconds, most) for step in some)
        result[sequences] = float(sum(step.tokens for step in some)), seconds, len(some)
    return result
