"""Stretches of time: joined, measured, and what lies between them.

Knows nanoseconds and names; knows neither devices nor profilers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

# What no mark covers.
UNMARKED = "unmarked"


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """From `start` to `end`, both in ns on one clock."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def overlap(self, start: int, end: int) -> int:
        """Nanoseconds that both share; 0 where they do not touch."""
        return max(0, min(self.end, end) - max(self.start, start))


@dataclass(frozen=True, slots=True)
class Mark:
    """What a thread did from `start` to `end`, in ns."""

    name: str
    start: int
    end: int


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Their union, in order: intervals that overlap or touch become one, empty ones vanish."""
    joined: list[Interval] = []
    for interval in sorted(one for one in intervals if one.length > 0):
        if joined and interval.start <= joined[-1].end:
            joined[-1] = Interval(joined[-1].start, max(joined[-1].end, interval.end))
        else:
            joined.append(interval)
    return joined


def covered(busy: Sequence[Interval], window: Interval) -> int:
    """Nanoseconds of `window` that `busy`, disjoint intervals, covers."""
    return sum(window.overlap(one.start, one.end) for one in busy)


def gaps(busy: Sequence[Interval], window: Interval) -> list[Interval]:
    """What of `window` the intervals of `busy`, disjoint and in order, leave open."""
    found: list[Interval] = []
    at = window.start
    for one in busy:
        if one.end <= at:
            continue
        if one.start >= window.end:
            break
        if one.start > at:
            found.append(Interval(at, one.start))
        at = one.end
    if at < window.end:
        found.append(Interval(at, window.end))
    return found


def innermost(marks: Iterable[Mark]) -> list[Mark]:
    """Disjoint marks in order: at each moment the one that began last and still runs.

    A mark that outlasts the one it began in is cut where that one ends.
    """
    flat: list[Mark] = []
    stack: list[Mark] = []
    at = 0

    def until(moment: int) -> None:
        nonlocal at
        if stack and moment > at:
            flat.append(Mark(stack[-1].name, at, moment))
        at = max(at, moment)

    for mark in sorted(marks, key=lambda mark: (mark.start, -mark.end)):
        while stack and stack[-1].end <= mark.start:
            until(stack[-1].end)
            stack.pop()
        if stack:
            until(mark.start)
            mark = Mark(mark.name, mark.start, min(mark.end, stack[-1].end))
        at = mark.start
        if mark.end > mark.start:
            stack.append(mark)
    while stack:
        until(stack[-1].end)
        stack.pop()
    return flat


def shares(gap: Interval, marks: Sequence[Mark]) -> dict[str, int]:
    """Nanoseconds of `gap` by what was marked then, most first; `marks` are `innermost`'s."""
    found: dict[str, int] = {}
    for mark in islice(marks, bisect_right(marks, gap.start, key=lambda mark: mark.end), None):
        if mark.start >= gap.end:
            break
        found[mark.name] = found.get(mark.name, 0) + gap.overlap(mark.start, mark.end)
    rest = gap.length - sum(found.values())
    if rest > 0:
        found[UNMARKED] = rest
    return most_first(found)


def most_first(amounts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(amounts.items(), key=lambda item: -item[1]))
