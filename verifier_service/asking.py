"""What asking proposers costs a step, beyond what every step costs besides the forward.

Knows seconds outside the forward, of steps that asked and of steps that did not; knows no drafts.
Asking is more than waiting for answers: views are built and sent, more is planned, and threads
that take answers in compete with the one that hands outputs out.
"""

from __future__ import annotations

# Weight of one step in the average of those that did not ask.
_RATE = 0.1
# A step outside the average by more than this many times it is a pause, no habit.
_PAUSE = 4.0


class AskingCost:
    """Averages, for each power of two of sequences, the seconds around steps that did not ask."""

    __slots__ = ("_plain",)

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}

    def observe_plain(self, sequences: int, seconds: float) -> None:
        """Take in a step that did not ask: `seconds` of it were not the forward's."""
        octave = sequences.bit_length()
        known = self._plain.get(octave)
        if known is None:
            self._plain[octave] = seconds
        else:
            self._plain[octave] = known + _RATE * (min(seconds, _PAUSE * known) - known)

    def around(self, sequences: int) -> float:
        """Seconds besides the forward of a step of about so many sequences that does not ask."""
        return self._plain.get(sequences.bit_length(), 0.0)

    def of(self, sequences: int, seconds: float, waited: float) -> float:
        """What asking added to a step that took `seconds` besides the forward, at least 0.

        `waited` of them were spent on asking and waiting alone: the answer while no step of about
        so many sequences was seen that did not ask.
        """
        plain = self._plain.get(sequences.bit_length())
        return waited if plain is None else max(seconds - plain, 0.0)
