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
from statistics import median

from outrider.records import record

# Steps that the averages of tokens go back, and how much more those of one text are alike than
# independent ones: of so many steps one counts.
_MEMORY, _ALIKE = 300.0, 4.0
# What one sequence's tokens a step are taken to vary by (squared) in the first so many steps.
_FIRST_SPREAD, _FIRST = 1.0, 30.0
# Standard deviations, of logarithms: how far the controller's promise may be wrong, how far step
# times may drift from one comparison to the next, and what noise these have at first and at least.
_PROMISE_ERROR, _DRIFT, _NOISE, _LEAST_NOISE = 0.15, 0.015, 0.06, 0.01
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
    """A step of so many sequences; whether it was of a plain period, and verified drafts."""

    sequences: int
    tokens: int
    seconds: float
    drafted: bool


class PlainGain:
    """How far what drafts gain lies from what is promised (logarithms of ratios to plain)."""

    __slots__ = (
        "_drafted",
        "_first_spread",
        "_others",
        "_promised",
        "_share",
        "_squares",
        "_tokens",
        "_weight",
    )

    def __init__(self, sequences: int) -> None:
        self._first_spread = _FIRST_SPREAD / sequences
        # How much longer steps take than plain ones do: those with drafts, and those that had none
        # though they might have.
        self._drafted = _Filter()
        self._others = _Filter()
        # Decayed sums over steps that might draft: weights, tokens a sequence and their squares,
        # steps that had drafts, promises.
        self._weight = self._tokens = self._squares = self._share = self._promised = 0.0

    @property
    def known(self) -> bool:
        """Whether step times were compared at all."""
        return self._drafted.known or self._others.known

    @property
    def bias(self) -> float:
        """What is gained beyond what is promised."""
        if not self.known or self._weight <= 0.0:
            return 0.0
        weight = self._weight
        share = self._share / weight
        drafted = (self._drafted if self._drafted.known else self._others).mean
        longer = share * math.exp(drafted) + (1.0 - share) * math.exp(self._others.mean)
        gained = math.log(self._tokens / weight) - math.log(longer)
        return (gained - self._promised / weight) * self._trust

    @property
    def error(self) -> float:
        """Standard error of `bias`."""
        share = self._share / self._weight if self._weight > 0.0 else 0.0
        times = share**2 * self._drafted.variance + (1.0 - share) ** 2 * self._others.variance
        return math.sqrt(times + self._trust * self._token_variance)

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

    def compare(self, plain: Iterable[Step], others: Iterable[Step]) -> None:
        """Take in times of neighbours: plain steps, and those that might draft."""
        times = _by_sequences(plain)
        drafted: list[Step] = []
        without: list[Step] = []
        for step in others:
            (drafted if step.drafted else without).append(step)
        for steps, filtered in ((drafted, self._drafted), (without, self._others)):
            found = _log_ratio(_by_sequences(steps), times)
            if found is not None:
                filtered.add(found)

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


class _Filter:
    """A logarithm that drifts, seen through noise: a scalar Kalman filter."""

    __slots__ = ("_noise", "known", "mean", "variance")

    def __init__(self) -> None:
        self.mean = 0.0
        # Whether there was a comparison at all.
        self.known = False
        self.variance = 0.0
        self._noise = _NOISE**2

    def add(self, value: float) -> None:
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
