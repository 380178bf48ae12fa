"""Whether a plain step is begun before anybody has looked at what the step before it brought.

Knows counts and seconds alone. A plain step behind a plain step can be queued while the device
still works: then it never stands still between the two. Or the outcome is read first, to see
whether look-ahead has drafts behind it: then it stands still for as long as reading, looking and
launching take, which is known of every look. What a look is worth is known without looking, too:
what was to be had behind an outcome can be counted while the step that was begun blindly runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier_service.pauses import Pause

# Weight of one outcome in the average of what there was.
_RATE = 0.02
# Outcomes of single sequences, and of steps, before the first judgement; looks that took time.
_TRIED, _FEWEST, _TIMED = 16, 4, 3
# Where looks do not pay one of so many is made all the same, to see what it takes now.
_EVERY = 32


@dataclass(slots=True)
class _Mean:
    """A running mean that becomes a decayed one."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(_RATE, 1.0 / self.count) * (value - self.value)


@dataclass(slots=True)
class _Load:
    """What looks took and were worth, at about one number of sequences."""

    look: Pause = field(default_factory=Pause)
    # By how many sequences had drafts that were not verified (its power of two).
    worth: dict[int, _Mean] = field(default_factory=dict)
    turn: int = 0

    def worth_of(self, unused: int) -> _Mean:
        return self.worth.setdefault(unused.bit_length(), _Mean())


class Looks:
    """Averages for each power of two of sequences."""

    __slots__ = ("_loads",)

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def begins_blindly(self, unused: int, sequences: int) -> bool:
        """Whether the step behind this plain one is begun without a look.

        `unused` of its `sequences` have drafts that it does not verify.
        """
        if not self.is_futile(unused, sequences):
            return False
        load = self._load(sequences)
        load.turn = (load.turn + 1) % _EVERY
        return load.turn > 0

    def is_futile(self, unused: int, sequences: int) -> bool:
        """Whether a look is known to be worth less than it takes."""
        load = self._load(sequences)
        worth = load.worth_of(unused)
        known = worth.count >= _FEWEST and worth.count * sequences >= _TRIED
        return known and worth.value < self.cost(sequences)

    def cost(self, sequences: int) -> float:
        """Seconds that the device stands still for a look; 0 where that is not known."""
        look = self._load(sequences).look
        return look.seconds if look.count >= _TIMED else 0.0

    def found(self, unused: int, sequences: int, seconds: float) -> None:
        """Take in what a look behind a step was worth, or would have been.

        `unused` as for `begins_blindly`.
        """
        self._load(sequences).worth_of(unused).add(seconds)

    def took(self, sequences: int, seconds: float) -> None:
        """Take in how long a look took, behind which a plain step was begun."""
        self._load(sequences).look.add(seconds)

    def _load(self, sequences: int) -> _Load:
        return self._loads.setdefault(sequences.bit_length(), _Load())
