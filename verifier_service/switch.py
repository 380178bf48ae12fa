"""Whether asking proposers for drafts pays: on and off, with the averages behind it.

Knows gains and seconds of steps; knows no drafts, sequences or proposers.
"""

from __future__ import annotations

import math

# Relative gain over plain below which speculation is given up, and above which it is taken up.
LEAVE, ENTER = 0.005, 0.02
# Least gain of a step while what was admitted lately owes more than luck explains.
OWING = 0.08
# Weight of one step in the average gain and wait, while on and (asking seldom) while off.
_RATE_ON, _RATE_OFF = 1.0 / 48.0, 1.0 / 6.0
_WAIT_RATE_ON, _WAIT_RATE_OFF = 0.1, 0.5
# Of so many waits at first the shortest counts.
_FIRST_WAITS = 3
# Asking counts as free where its wait is below this share of a step.
_FREE_WAIT = 0.002
# Waits whose worth may be saved up, and what may be lost beyond that before speculation is given
# up: so many waits, or so many plain steps where that is more.
_MOST_SAVED, _MOST_LOST, _MOST_STEPS_LOST = 32.0, 1.5, 0.6
# What the deepest draft admitted keeps of itself in a step without it, and how many are asked for
# beyond it.
_DEPTH_KEEP, _BEYOND = 0.98, 2


class Switch:
    """Decayed averages of what asking gains and costs, and whether it is therefore on.

    `gain` is relative to a plain step that did not ask; `wait` are the seconds that asking adds
    to a step, below 0 while none was measured; `threshold` is the least gain for which drafts are
    verified.
    """

    __slots__ = ("_account", "_depth", "_waits", "gain", "on", "wait")

    def __init__(self, ceiling: int) -> None:
        self.on = True
        self.gain = 2.0 * ENTER
        self.wait = -1.0
        self._waits = 0
        # Seconds that speculation saved since it went on, asking included.
        self._account = 0.0
        # Decayed depth of the deepest draft admitted.
        self._depth = float(ceiling)

    @property
    def threshold(self) -> float:
        return LEAVE if self.on else ENTER

    @property
    def asks(self) -> int:
        """How many drafts are worth asking for while asking costs something."""
        return math.ceil(self._depth) + _BEYOND

    def is_free(self, plain_seconds: float) -> bool:
        """Whether asking costs nothing worth counting beside a plain step of so many seconds."""
        return self.wait <= _FREE_WAIT * plain_seconds

    def follow(self, gain: float) -> None:
        """Average the gain of a step that asked, and switch across the two thresholds."""
        rate = _RATE_ON if self.on else _RATE_OFF
        self.gain += rate * (gain - self.gain)
        if self.on and self.gain < LEAVE:
            self.on = False
        elif not self.on and self.gain > ENTER:
            self.on = True
            self._account = 0.0

    def settle(self, saved: float, plain_seconds: float) -> None:
        """Take in seconds that a step's drafts really saved; asking took what it usually does.

        While on, what was lost since it went on may not exceed what was saved by more than a wait
        or so: an average alone goes on for dozens of steps after text has changed.
        """
        if not self.on or self.is_free(plain_seconds):
            return
        self._account = min(self._account + saved - self.wait, _MOST_SAVED * self.wait)
        if self._account < -max(_MOST_LOST * self.wait, _MOST_STEPS_LOST * plain_seconds):
            self.on = False
            self.gain = min(self.gain, 0.0)

    def admitted(self, deepest: int) -> None:
        """Take in the longest block of the step that is verified."""
        self._depth = max(_DEPTH_KEEP * self._depth, float(deepest))

    def observe_wait(self, seconds: float) -> None:
        """Take in what asking added to a step. Raises ValueError below 0."""
        if seconds < 0.0:
            raise ValueError(f"draft wait is {seconds} seconds; allowed: 0 or more")
        if self._waits < _FIRST_WAITS:
            # One pause while everything is new would keep it off for a hundred steps.
            self._waits += 1
            self.wait = seconds if self.wait < 0.0 else min(self.wait, seconds)
            return
        # One missed deadline is no habit yet.
        bounded = min(seconds, 4.0 * self.wait + 1e-3)
        rate = _WAIT_RATE_ON if self.on else _WAIT_RATE_OFF
        self.wait += rate * (bounded - self.wait)
