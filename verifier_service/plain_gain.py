"""What drafts gain at about one number of sequences: tokens by long averages, times by neighbours.

A machine's speed wanders within seconds, so step times are compared with those of neighbouring
steps. What a step emits hangs on the text alone: sixteen steps of one sequence that all lie in a
passage that repeats, or all beside it, say nothing of the next hundred. So tokens, and how often
there is a draft at all, are averaged over hundreds of steps. Knows no drafts, engine or clock.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from outrider.records import record

# Steps that the averages of tokens go back, and how much more those of one text are alike than
# independent ones: of so many steps one counts.
_MEMORY, _ALIKE = 1500.0, 4.0
# What one sequence's tokens a step are taken to vary by (squared) in the first so many steps.
_FIRST_SPREAD, _FIRST = 1.0, 30.0
# Standard deviations, of logarithms: how far the controller's promise may be wrong, how far step
# times may drift from one comparison to the next, and what noise these have at first and at least.
_PROMISE_ERROR, _DRIFT, _NOISE, _LEAST_NOISE = 0.15, 0.015, 0.06, 0.01
# How far steps of twice or half as many sequences may differ in that.
_OTHERS = 0.1
# Weight of one comparison in the estimate of the noise.
_NOISE_RATE = 0.1
# A comparison is no noise where its square is so many times what is expected.
_CHANGE = 4.0
# A step that takes so many times the median of its period was interrupted.
_PAUSE = 3.0
# Fewest steps, with as many sequences, that a time is taken from.
_FEWEST = 3


@record(frozen=True, slots=True)
class Step:
    """A step of so many sequences, and whether drafts were verified in it."""

    sequences: int
    tokens: int
    seconds: float
    drafted: bool


class PlainGain:
    """How far what drafts gain lies from what is promised (logarithms of ratios to plain)."""

    __slots__ = (
        "_all",
        "_drafted",
        "_first_spread",
        "_others",
        "_promised",
        "_share",
        "_squares",
        "_tokens",
        "_weight",
    )

    def __init__(self, sequences: int, like: PlainGain | None = None) -> None:
        """`like` is what is known of about another number of sequences."""
        self._first_spread = _FIRST_SPREAD / sequences
        # How much longer steps take than plain ones do: those with drafts, and those that had none
        # though they might have.
        self._drafted: _Filter = _Filter(None if like is None else like._drafted)
        self._others: _Filter = _Filter(None if like is None else like._others)
        # Decayed sums over steps that might draft: weights, tokens a sequence and their squares,
        # steps that had drafts, promises.
        self._weight = self._tokens = self._squares = self._share = self._promised = 0.0
        self._all = _Sums()

    @property
    def known(self) -> bool:
        """Whether steps with drafts were compared, of so many sequences or others."""
        return self._drafted.known

    @property
    def compared(self) -> bool:
        """Whether any step was."""
        return self._drafted.known or self._others.known

    def expected(self, promised: float) -> float:
        """What drafts gain in the steps to come; of the last ones so much was promised.

        A passage that does not repeat is soon over: what was promised in the long run counts, too.
        """
        usual = self._promised / self._weight if self._weight > 0.0 else promised
        return max(promised, usual) + self.bias

    @property
    def bias(self) -> float:
        """What is gained beyond what is promised."""
        if not self.known or self._weight <= 0.0:
            return 0.0
        weight = self._weight
        share = self._share / weight
        longer = _mean_of(share, self._drafted.mean, self._others.mean)
        gained = math.log(self._tokens / weight) - longer
        return (gained - self._promised / weight) * self._trust

    @property
    def error(self) -> float:
        """Standard error of `bias`."""
        share = self._share / self._weight if self._weight > 0.0 else 0.0
        times = share**2 * self._drafted.variance + (1.0 - share) ** 2 * self._others.variance
        return math.sqrt(times + self._trust * self._token_variance)

    @property
    def measured(self) -> tuple[float, float, float]:
        """What drafts gained since start, a logarithm; its variance; seconds of steps with drafts.

        What was emitted is known; what varies are the step times it is compared by. No seconds
        where nothing was compared.
        """
        sums = self._all
        if not sums.steps or not self._drafted.count + self._others.count:
            return 0.0, 0.0, 0.0
        share = sums.drafted / sums.steps
        others = self._others.usual
        drafted = self._drafted.usual if self._drafted.count else others
        variance = share**2 * drafted[1] + (1.0 - share) ** 2 * others[1]
        longer = _mean_of(share, drafted[0], others[0])
        return math.log(sums.tokens / sums.steps) - longer, variance, sums.seconds

    def emitted(self, step: Step, promised: float) -> None:
        """Take in a step that might draft, and what was promised of it."""
        keep = 1.0 - 1.0 / _MEMORY
        each = step.tokens / step.sequences
        self._weight = keep * self._weight + 1.0
        self._tokens = keep * self._tokens + each
        # The mean of many sequences varies less; this is the variance of the mean.
        self._squares = keep * self._squares + each * each
        self._share = keep * self._share + step.drafted
        self._promised = keep * self._promised + promised
        self._all.add(each, step.seconds, step.drafted)

    def compare(self, plain: Iterable[Step], others: Iterable[Step]) -> bool:
        """Take in times of neighbours: plain steps, and those that might draft.

        False where too few of them have as many sequences.
        """
        times = _by_sequences(plain)
        drafted: list[Step] = []
        without: list[Step] = []
        for step in others:
            (drafted if step.drafted else without).append(step)
        compared = False
        for steps, filtered in ((drafted, self._drafted), (without, self._others)):
            found = _log_ratio(_by_sequences(steps), times)
            if found is not None:
                filtered.add(found)
                compared = True
        return compared

    @property
    def _trust(self) -> float:
        """How much of what tokens show beyond the promise is believed."""
        return _PROMISE_ERROR**2 / (_PROMISE_ERROR**2 + self._token_variance)

    @property
    def _token_variance(self) -> float:
        """Of the logarithm of the average of tokens."""
        if self._weight <= 0.0:
            return _PROMISE_ERROR**2
        mean = self._tokens / self._weight
        spread = max(self._squares / self._weight - mean * mean, 0.0)
        # The first steps of a text are often all alike.
        spread += (self._first_spread - spread) * _FIRST / (_FIRST + self._weight)
        return _ALIKE * spread / (mean * mean * self._weight)


@dataclass(slots=True)
class _Sums:
    """Over all steps that might draft."""

    steps: int = 0
    drafted: int = 0
    # Of one sequence.
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float, drafted: bool) -> None:
        self.steps += 1
        self.drafted += drafted
        self.tokens += tokens
        self.seconds += seconds


class _Filter:
    """A logarithm that drifts, seen through noise: a scalar Kalman filter.

    `mean` and `variance` are of now, `usual` are those of all `count` values.
    """

    __slots__ = ("_noise", "_squares", "_sum", "count", "known", "mean", "variance")

    def __init__(self, like: _Filter | None = None) -> None:
        self.count = 0
        self._sum = self._squares = 0.0
        self.mean = self.variance = 0.0
        # Whether there is a guess at all.
        self.known = False
        self._noise = _NOISE**2
        if like is not None and like.known:
            self.known = True
            self.mean, self.variance = like.mean, like.variance + _OTHERS**2
            self._noise = like._noise

    @property
    def usual(self) -> tuple[float, float]:
        """Mean of all values, and the variance of that mean."""
        if not self.count:
            return 0.0, 0.0
        mean = self._sum / self.count
        spread = max(self._squares / self.count - mean * mean, 0.0)
        if self.count == 1:
            spread = self._noise
        return mean, spread / max(self.count - 1, 1)

    def add(self, value: float) -> None:
        self.count += 1
        self._sum += value
        self._squares += value * value
        if not self.known:
            self.known = True
            self.mean, self.variance = value, self._noise
            return
        surprise = value - self.mean
        expected = self.variance + _DRIFT**2 + self._noise
        # What noise and drift do not explain is another machine.
        beyond = max(surprise * surprise - _CHANGE * expected, 0.0)
        self.variance += _DRIFT**2 + beyond
        noise = min(max(surprise * surprise - self.variance, _LEAST_NOISE**2), _CHANGE * expected)
        self._noise += _NOISE_RATE * (noise - self._noise)
        weight = self.variance / (self.variance + self._noise)
        self.mean += weight * surprise
        self.variance *= 1.0 - weight


def _mean_of(share: float, mine: float, others: float) -> float:
    """Logarithm of the mean of two ratios (logarithms), the first with this share."""
    return math.log(share * math.exp(mine) + (1.0 - share) * math.exp(others))


def _log_ratio(
    mine: dict[int, tuple[float, int]], theirs: dict[int, tuple[float, int]]
) -> float | None:
    """Logarithm of how much longer my steps take; None where too few have as many sequences."""
    total = weight = 0.0
    for sequences, (seconds, count) in mine.items():
        other, others = theirs.get(sequences, (0.0, 0))
        if min(count, others) < _FEWEST:
            continue
        least = min(count, others)
        total += least * math.log(seconds / count * others / other)
        weight += least
    return total / weight if weight else None


def _by_sequences(steps: Iterable[Step]) -> dict[int, tuple[float, int]]:
    """{sequences: (seconds, steps)}, pauses cut."""
    by: defaultdict[int, list[float]] = defaultdict(list)
    for step in steps:
        by[step.sequences].append(step.seconds)
    result = {}
    for sequences, some in by.items():
        most = _PAUSE * median(some)
        result[sequences] = sum(min(seconds, most) for seconds in some), len(some)
    return result
