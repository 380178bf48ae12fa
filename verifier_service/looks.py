"""Whether a plain step is begun before anybody has looked at what the step before it brought.

Knows counts and seconds alone. A plain step behind a plain step can be queued while the device
still works: then it never stands still between the two. Or the outcome is read first, to see
whether look-ahead has drafts behind it: then it stands still for as long as reading, looking and
launching take. What such a look is worth is known without looking, too: what was to be had behind
an outcome can be counted while the step that was begun blindly runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Weight of one outcome in the average of what there was, and of one step in those of times.
_RATE, _TIME_RATE = 0.02, 0.05
# Outcomes, and steps of each kind, before the first judgement.
_TRIED = 16
# One of so many decisions goes the other way for as many steps, to see what that takes now.
_EVERY, _AGAIN = 128, 4
# A step that takes so much more than expected, as a share, was interrupted.
_INTERRUPTED = 0.5


@dataclass(slots=True)
class _Mean:
    """A running mean that becomes a decayed one; `rate` is the least weight of one value."""

    rate: float
    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(self.rate, 1.0 / self.count) * (value - self.value)


@dataclass(slots=True)
class _Load:
    """Seconds a step beyond what was expected, and what looks were worth, at about one load."""

    blind: _Mean = field(default_factory=lambda: _Mean(_TIME_RATE))
    looked: _Mean = field(default_factory=lambda: _Mean(_TIME_RATE))
    # By how many sequences had drafts that were not verified (its power of two).
    worth: dict[int, _Mean] = field(default_factory=dict)
    turn: int = 0

    def worth_of(self, unused: int) -> _Mean:
        return self.worth.setdefault(unused.bit_length(), _Mean(_RATE))


class Looks:
    """Averages for each power of two of sequences."""

    __slots__ = ("_loads",)

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def begins_blindly(self, unused: int, sequences: int) -> bool:
        """Whether the step behind this plain one is begun without a look.

        `unused` of its `sequences` have drafts that it does not verify.
        """
        load = self._load(sequences)
        if min(load.worth_of(unused).count, load.looked.count) < _TRIED:
            return False
        if load.blind.count < _TRIED:
            return True
        load.turn = (load.turn + 1) % _EVERY
        return self.is_futile(unused, sequences) != (load.turn < _AGAIN)

    def is_futile(self, unused: int, sequences: int) -> bool:
        """Whether a look is known to be worth less than it takes."""
        load = self._load(sequences)
        worth = load.worth_of(unused)
        return worth.count >= _TRIED and worth.value < self.cost(sequences)

    def cost(self, sequences: int) -> float:
        """Seconds that the device stands still for a look; 0 where that is not known."""
        load = self._load(sequences)
        if min(load.blind.count, load.looked.count) < _TRIED:
            return 0.0
        return max(load.looked.value - load.blind.value, 0.0)

    def found(self, unused: int, sequences: int, seconds: float) -> None:
        """Take in what a look behind a step was worth, or would have been.

        `unused` as for `begins_blindly`.
        """
        self._load(sequences).worth_of(unused).add(seconds)

    def took(self, sequences: int, seconds: float, expected: float, *, blindly: bool) -> None:
        """Take in a plain step's whole time, where `expected` is what such a step usually takes.

        It was begun ahead, `blindly` or after a look.
        """
        load = self._load(sequences)
        most = _INTERRUPTED * expected
        (load.blind if blindly else load.looked).add(min(seconds - expected, most))

    def _load(self, sequences: int) -> _Load:
        return self._loads.setdefault(sequences.bit_length(), _Load())
