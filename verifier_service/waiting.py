"""Whether answers that look-ahead has not told are worth a wait. Knows counts and seconds alone.

An answer that is not waited for is not lost: it arrives while the step runs, and where its first
draft comes true the rest of it can be verified in the next step. So a wait gains one token for
each sequence whose first draft is right, and costs every sequence its time.
"""

from __future__ import annotations

from dataclasses import dataclass

# Waits of about so many sequences before the first judgement; the shortest of them counts.
_TRIED = 3
# The share of sequences waited for whose first draft is right, before anything is known.
_PRIOR = 0.3
_WAIT_RATE = 0.1
# Weight of one sequence that was waited for.
_RIGHT_RATE = 0.05
# Of the time that passes, what may be spent on waits that do not pay, to see whether they would.
_PROBE_SHARE = 0.002
# A wait so many times as long as usual is a pause, no habit.
_PAUSE = 4.0


@dataclass(slots=True)
class _Load:
    """What waits brought at about one number of sequences."""

    seconds: float = 0.0
    right: float = _PRIOR
    waits: int = 0


class Waiting:
    """Averages, for each power of two of sequences, of what waits took and brought."""

    __slots__ = ("_credit", "_loads", "_pending", "_right")

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}
        self._credit = 0.0
        # The wait whose rounds are being told: its load, and for how many sequences.
        self._pending: tuple[_Load, int] | None = None
        self._right = 0

    def pays(self, unknown: int, sequences: int, plain_seconds: float) -> bool:
        """Whether to wait for the answers of `unknown` of `sequences`.

        `plain_seconds` is what a step takes in which every sequence gains one token.
        """
        load = self._loads.get(sequences.bit_length())
        if load is None or load.waits < _TRIED:
            return True
        gained = unknown * load.right * plain_seconds / max(sequences, 1)
        return gained > load.seconds or self._credit >= load.seconds

    def waited(self, unknown: int, sequences: int, seconds: float) -> None:
        """Take in a wait; `right` is called for each of its rounds that accepts a draft."""
        self._settle()
        load = self._loads.setdefault(sequences.bit_length(), _Load())
        load.waits += 1
        if load.waits <= _TRIED:
            load.seconds = seconds if load.waits == 1 else min(load.seconds, seconds)
        else:
            load.seconds += _WAIT_RATE * (min(seconds, _PAUSE * load.seconds) - load.seconds)
        self._credit = 0.0
        self._pending = load, unknown

    def right(self) -> None:
        """A draft that was waited for was accepted, in the step after the last wait."""
        self._right += 1

    def passed(self, seconds: float) -> None:
        """So much time went by."""
        self._credit += _PROBE_SHARE * seconds

    def _settle(self) -> None:
        if self._pending is not None:
            load, unknown = self._pending
            share = min(self._right / unknown, 1.0)
            load.right += min(_RIGHT_RATE * unknown, 1.0) * (share - load.right)
        self._pending = None
        self._right = 0
