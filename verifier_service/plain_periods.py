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
from dataclasses import dataclass

from verifier_service.plain_gain import PlainGain, Step

# Steps compared in a period, and as many before and after it.
_STEPS = 16
# What the worse arm may cost, as a share of the time, and the least and most share of its steps.
_LOSS, _LEAST, _MOST = 0.004, 0.005, 0.5
# The second comparison comes after a period of so many times as many steps at most, each further
# one of twice as many.
_FIRST_WAIT = 3.0


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """What speculation gained over plain periods, since start (0.2: a fifth more tokens a second).

    `error` is the standard error of `gain`, `periods` the number of comparisons.
    """

    gain: float = 0.0
    error: float = 0.0
    periods: int = 0


class PlainPeriods:
    """Says which steps decode plainly, and what the others gain.

    What a step is expected to gain is what the controller promises, corrected by how far earlier
    promises lay from what was measured, for about as many sequences (`PlainGain`).

    `share` of the steps is plain; None: as the measured gain allows. 0 turns it off. Call order
    for each step: `begin`, then `observe` unless it prefilled or nothing decoded. Not thread-safe.
    """

    def __init__(self, share: float | None = None) -> None:
        if share is not None and not 0.0 <= share <= 0.5:
            raise ValueError(f"the share of plain steps is {share}; allowed: 0 to 0.5")
        self._share = share
        self._plain = False
        # Steps of this period so far, the first one included.
        self._steps = 0
        self._before: deque[Step] = deque(maxlen=_STEPS)
        self._middle: deque[Step] = deque(maxlen=_STEPS)
        # The period that `_before` and `_middle` are, drafts or none, once there are both.
        self._now: deque[Step] = deque(maxlen=_STEPS)
        self._gains: dict[int, PlainGain] = {}
        # By power of two of sequences, as the gains are: comparisons so far.
        self._compared: defaultdict[int, int] = defaultdict(int)
        self._sequences = 1
        self._promise = 0.0

    @property
    def loses(self) -> float:
        """What drafts surely cost by the last comparisons, as a share of the speed; else 0."""
        gain = self._gain_of(self._sequences)
        expected = gain.expected(self._promise)
        if not gain.known or expected + gain.error >= 0.0:
            return 0.0
        return -math.expm1(expected)

    @property
    def measured(self) -> MeasuredGain:
        gains = [gain.measured for gain in self._gains.values()]
        seconds = sum(each[2] for each in gains)
        if not seconds:
            return MeasuredGain()
        mean = sum(each[0] * each[2] for each in gains) / seconds
        variance = sum(each[1] * each[2] ** 2 for each in gains) / seconds**2
        gain = math.expm1(mean)
        periods = sum(self._compared.values())
        return MeasuredGain(gain, math.sqrt(variance) * (1.0 + gain), periods)

    def begin(self, sequences: int, promised: float, *, speculating: bool) -> bool:
        """Whether the step is to decode plainly.

        `sequences` decode now; `promised` is the controller's average gain. While it is not
        `speculating` anyway there is nothing to compare.
        """
        if self._share == 0.0 or not speculating:
            self._reset()
            return False
        if sequences <= 0:
            return False
        self._sequences = sequences
        self._promise = math.log1p(max(promised, -0.5))
        if self._steps >= self._length():
            self._turn()
        return self._plain

    def observe(self, sequences: int, tokens: int, seconds: float, *, drafted: bool) -> None:
        """Take in the step: `tokens` of so many sequences, `seconds` since the last one ended.

        `drafted`: drafts were verified in it.
        """
        self._steps += 1
        step = Step(sequences, tokens, seconds, drafted)
        if not self._plain:
            self._gain_of(sequences).emitted(step, self._promise)
        # What the change itself costs belongs to neither.
        if self._steps > 1:
            self._now.append(step)
            if self._steps == _STEPS + 1:
                self._compare()

    def _length(self) -> int:
        """Steps of the period that runs."""
        known = self._gain_of(self._sequences)
        expected = known.expected(self._promise)
        sure = known.known and abs(expected) > known.error
        if expected < 0.0:
            # What is not tried cannot be found to gain: a loss counts where it is sure.
            expected = min(expected + known.error, 0.0)
        worse = min(max(_LOSS / max(abs(expected), 1e-9), _LEAST), _MOST)
        plain = (worse if expected > 0.0 else 1.0 - worse) if self._share is None else self._share
        mine = plain if self._plain else 1.0 - plain
        # The rarer of the two gets as many steps as are compared, the other so many times that.
        times = max(mine / (1.0 - mine), 1.0)
        if self._share is None and not sure:
            # A promise alone is soon put to the test, and then less and less often.
            compared = self._compared[self._sequences.bit_length()] if known.known else 0
            times = min(times, _FIRST_WAIT * 2.0**compared if known.compared else 1.0)
        return 1 + round(_STEPS * times)

    def _gain_of(self, sequences: int) -> PlainGain:
        octave = sequences.bit_length()
        gain = self._gains.get(octave)
        if gain is None:
            known = [other for other, found in self._gains.items() if found.known]
            nearest = min(known, key=lambda other: abs(other - octave), default=None)
            like = None if nearest is None else self._gains[nearest]
            gain = self._gains[octave] = PlainGain(sequences, like)
        return gain

    def _turn(self) -> None:
        """Begin the other period."""
        self._before, self._middle, self._now = self._middle, self._now, deque(maxlen=_STEPS)
        if self._steps > 2 * _STEPS:
            # What was before so long a period is no neighbour of its end.
            self._before.clear()
        self._plain = not self._plain
        self._steps = 0

    def _compare(self) -> None:
        """The period between two of the other kind is compared with both of them."""
        if len(self._before) < _STEPS or len(self._middle) < _STEPS:
            return
        around = [*self._before, *self._now]
        # `_plain` is what now runs, around the period in the middle.
        plain, others = (around, self._middle) if self._plain else (self._middle, around)
        if self._gain_of(self._sequences).compare(plain, others):
            self._compared[self._sequences.bit_length()] += 1

    def _reset(self) -> None:
        if self._steps or self._plain:
            self._plain = False
            self._steps = 0
            self._before.clear()
            self._middle.clear()
            self._now.clear()
