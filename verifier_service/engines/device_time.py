"""How long a device has been busy, from events between what it was given to do.

Knows launches and the marks around them; does not know steps, models or metrics. A device does one
launch after the other, so one mark behind each launch is enough while it has work: the time between
two marks is the later launch's. Only where the device has run out of work does a launch get a mark
in front of it as well, and what lies between is idle. Marks are read when they have passed, never
waited for, and no moment is counted twice. They are read when somebody asks for the time, which is
while the device works, and not before a launch, for which it may stand still; so they are used
again rather than made anew.

What the host launches in many small parts, as everything is that was not captured, counts from its
first part to its last, gaps between them included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

import torch

# Launches whose marks wait to be read, where nobody asks for the time.
_MOST_PENDING = 16

_Replay = Callable[[], None]
_Capture = Callable[[_Replay], _Replay]


class Mark(Protocol):
    """A point in a device's work; `torch.cuda.Event` with timing is one."""

    def record(self) -> None:
        """Put the mark behind all that was launched."""

    def query(self) -> bool:
        """Whether the device has passed it. Does not wait."""

    def elapsed_time(self, end: Mark) -> float:
        """Milliseconds from this mark to `end`, both passed."""


class DeviceTime:
    """The busy seconds of one device's stream, since the first launch. One thread uses it."""

    def __init__(self, mark: Callable[[], Mark]) -> None:
        self._mark = mark
        # The mark behind the newest launch; where it has passed, the device has nothing to do.
        self._newest: Mark | None = None
        self._pending: deque[tuple[Mark, Mark]] = deque()
        # Marks that were read.
        self._free: list[Mark] = []
        self._seconds = 0.0

    @contextmanager
    def launch(self) -> Iterator[None]:
        """Around what is given to the device; one launch does not stand inside another."""
        start = self._begin()
        yield
        self._end(start)

    def seconds(self) -> float:
        """Busy seconds of all launches that have ended."""
        self._settle()
        return self._seconds

    def timed(self, capture: _Capture) -> _Capture:
        """`capture` whose replays are launches."""

        def capture_timed(function: _Replay) -> _Replay:
            replay = capture(function)

            def replay_timed() -> None:
                start = self._begin()
                replay()
                self._end(start)

            return replay_timed

        return capture_timed

    def _begin(self) -> Mark:
        if len(self._pending) > _MOST_PENDING:
            self._settle()
        newest = self._newest
        if newest is not None:
            if not newest.query():
                return newest
            if not self._pending:
                self._free.append(newest)
        return self._recorded()

    def _end(self, start: Mark) -> None:
        self._newest = end = self._recorded()
        self._pending.append((start, end))

    def _recorded(self) -> Mark:
        mark = self._free.pop() if self._free else self._mark()
        mark.record()
        return mark

    def _settle(self) -> None:
        """Add up what has ended; launches end in their order."""
        while self._pending and self._pending[0][1].query():
            start, end = self._pending.popleft()
            self._seconds += start.elapsed_time(end) * 1e-3
            self._free.append(start)
            # Its end may be where the next launch started, and is the newest mark behind the last.
            if self._pending and self._pending[0][0] is not end:
                self._free.append(end)


def device_time(device: torch.device) -> DeviceTime | None:
    """The account of a CUDA device; None where work is done as it is given."""
    if device.type != "cuda":
        return None
    return DeviceTime(lambda: cast(Mark, torch.cuda.Event(enable_timing=True)))
