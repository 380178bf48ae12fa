"""Whether a proposer is worth waiting for; knows latencies and a deadline, nothing else.

A proposer that hangs must not cost every step a whole deadline, and one that recovered must be
waited for again. Late answers are measured too, so both are decided from evidence.
"""

from __future__ import annotations

from bisect import bisect_left

WAIT_BOUNDS_MS: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)

_MISSES_TO_SLOW = 3
_GOOD_TO_RETURN = 3
_MOST_GOOD_TO_RETURN = 96
_STEADY = 64
_WELL_INSIDE = 0.5
# Who always answers at once is waited for this many times as long as the longest of the last
# answers, and never less than so many seconds. Each answer counts a little less than the one after
# it, and none before there were so many.
_PATIENCE, _LEAST_S, _KEEP, _KNOWN = 8.0, 0.010, 0.98, 8


class Pace:
    """Turns slow after 3 missed deadlines in a row; back after enough answers well inside it.

    Enough is 3, and twice as many after each relapse (at most 96), so that a proposer which
    alternates costs ever less; 64 answers in time in a row make it trusted as at first.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline = deadline_s
        self._misses = 0
        self._good = 0
        self._good_needed = _GOOD_TO_RETURN
        self._in_time = 0
        self._longest_s = 0.0
        self._answers = 0
        self.slow = False

    @property
    def patience_s(self) -> float:
        """How long an answer is worth waiting for: the deadline, or less where it never took long.

        A deadline that a slow method needs must not be what every step waits for one that hangs.
        """
        if self._answers < _KNOWN:
            return self._deadline
        return min(self._deadline, max(_PATIENCE * self._longest_s, _LEAST_S))

    def missed(self) -> None:
        """A step waited for this proposer as long as it is worth, in vain."""
        self._misses += 1
        self._in_time = 0
        if self._misses >= _MISSES_TO_SLOW and not self.slow:
            self.slow = True
            self._good = 0

    def answered(self, latency_s: float) -> None:
        """An answer to a step that asked for drafts, late ones included."""
        self._answers += 1
        self._longest_s = max(latency_s, _KEEP * self._longest_s)
        if self.slow:
            self._good = self._good + 1 if latency_s <= _WELL_INSIDE * self._deadline else 0
            if self._good >= self._good_needed:
                self.slow = False
                self._misses = 0
                self._good_needed = min(_MOST_GOOD_TO_RETURN, 2 * self._good_needed)
        elif latency_s <= self._deadline:
            self._misses = 0
            self._in_time += 1
            if self._in_time >= _STEADY:
                self._good_needed = _GOOD_TO_RETURN


class WaitHistogram:
    """Milliseconds from a step's send to its answer; one count per bound and one above all."""

    def __init__(self) -> None:
        self.counts = [0] * (len(WAIT_BOUNDS_MS) + 1)
        self.count = 0
        self.sum_ms = 0.0

    def add(self, seconds: float) -> None:
        milliseconds = seconds * 1e3
        self.counts[bisect_left(WAIT_BOUNDS_MS, milliseconds)] += 1
        self.count += 1
        self.sum_ms += milliseconds
