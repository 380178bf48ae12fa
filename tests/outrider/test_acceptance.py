from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance import Acceptance, Round

K = 3
COUNTS = st.integers(0, K).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


def filled(counts: list[tuple[int, int]]) -> Acceptance:
    sums = Acceptance(K)
    for drafted, accepted in counts:
        sums.add(Round(0, drafted, drafted, accepted, accepted + 1))
    return sums


@given(st.lists(COUNTS, max_size=9), st.lists(COUNTS, max_size=9))
def test_what_was_added_since_is_what_was_added(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    assert filled(first + second).since(filled(first)) == filled(second)


def test_a_difference_does_not_change_with_what_it_was_taken_from() -> None:
    sums = filled([(3, 2)])
    taken = sums.since(Acceptance(K))
    sums.add(Round(0, 3, 3, 3, 4))
    assert taken == filled([(3, 2)])


def test_sums_of_different_ceilings_have_no_difference() -> None:
    with pytest.raises(ValueError, match="K=4 are no earlier ones of K=3"):
        filled([]).since(Acceptance(4))
