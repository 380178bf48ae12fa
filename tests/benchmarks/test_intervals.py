from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import (
    UNMARKED,
    Interval,
    Mark,
    covered,
    gaps,
    innermost,
    merged,
    shares,
)

SOME = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12).map(
    lambda pairs: [Interval(start, start + length) for start, length in pairs]
)
WINDOW = Interval(5, 55)


def moments(intervals: list[Interval]) -> set[int]:
    return {at for one in intervals for at in range(one.start, one.end)}


def test_overlapping_and_touching_intervals_become_one() -> None:
    found = merged([Interval(5, 8), Interval(0, 3), Interval(3, 4), Interval(6, 7), Interval(9, 9)])
    assert found == [Interval(0, 4), Interval(5, 8)]


@given(SOME)
def test_a_window_is_what_is_busy_and_the_gaps(intervals: list[Interval]) -> None:
    busy = merged(intervals)
    free = gaps(busy, WINDOW)
    inside = moments(intervals) & moments([WINDOW])
    assert covered(busy, WINDOW) == len(inside)
    assert moments(free) == moments([WINDOW]) - inside
    assert covered(busy, WINDOW) + sum(gap.length for gap in free) == WINDOW.length


def test_the_mark_that_began_last_counts() -> None:
    marks = [
        Mark("step", 0, 100),
        Mark("run", 20, 60),
        Mark("copy", 30, 40),
        Mark("step", 110, 120),
    ]
    assert innermost(marks) == [
        Mark("step", 0, 20),
        Mark("run", 20, 30),
        Mark("copy", 30, 40),
        Mark("run", 40, 60),
        Mark("step", 60, 100),
        Mark("step", 110, 120),
    ]


def test_a_mark_ends_with_the_one_it_began_in() -> None:
    assert innermost([Mark("outer", 0, 10), Mark("inner", 5, 20)]) == [
        Mark("outer", 0, 5),
        Mark("inner", 5, 10),
    ]


@given(SOME)
def test_innermost_marks_are_disjoint_in_order_and_cover_what_begins_outside(
    intervals: list[Interval],
) -> None:
    flat = innermost([Mark(str(n), one.start, one.end) for n, one in enumerate(intervals)])
    assert all(a.end <= b.start for a, b in itertools.pairwise(flat))
    assert {at for mark in flat for at in range(mark.start, mark.end)} <= moments(intervals)


def test_a_gap_is_shared_among_what_was_done_in_it() -> None:
    flat = [Mark("plan", 0, 12), Mark("send", 12, 14), Mark("plan", 16, 18), Mark("run", 25, 30)]
    assert shares(Interval(10, 20), flat) == {"plan": 4, UNMARKED: 4, "send": 2}
