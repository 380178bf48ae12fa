"""The n-gram proposer against a scan of the whole text, as vLLM's rules describe it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proposer_service.proposers.base import MAX_OUTCOMES, NO_DRAFT, Draft
from proposer_service.proposers.ngram import NgramProposer
from tests.proposer_service.properties import PROPERTY

TINY = st.lists(st.integers(0, 2), min_size=1, max_size=30)
WINDOWS = st.tuples(st.integers(1, 5), st.integers(0, 4)).map(lambda w: (w[0], w[0] + w[1]))


def scan(ids: list[int], low: int, high: int, k: int) -> Draft:
    for n in range(min(high, len(ids) - 1), low - 1, -1):
        suffix = ids[-n:]
        for start in range(len(ids) - n):
            if ids[start : start + n] == suffix:
                return Draft(tuple(ids[start + n : start + n + k]), n)
    return NO_DRAFT


def opened(ids: list[int], low: int, high: int) -> NgramProposer:
    proposer = NgramProposer(low, high)
    proposer.open(7, ids, len(ids), "")
    return proposer


@given(TINY, WINDOWS, st.integers(1, 8))
@PROPERTY
def test_equals_a_scan_of_the_whole_text(ids: list[int], window: tuple[int, int], k: int) -> None:
    assert opened(ids, *window).propose(7, k) == scan(ids, *window, k)


@given(st.lists(TINY, min_size=1, max_size=6), WINDOWS, st.integers(1, 8))
@PROPERTY
def test_growing_equals_opening_at_once(
    parts: list[list[int]], window: tuple[int, int], k: int
) -> None:
    proposer = opened(parts[0], *window)
    ids = list(parts[0])
    for part in parts[1:]:
        proposer.extend(7, part)
        ids += part
        assert proposer.propose(7, k) == scan(ids, *window, k)


@given(TINY, WINDOWS, st.integers(1, 8), st.integers(1, 8))
@PROPERTY
def test_lookahead_prepares_what_propose_will_say(
    ids: list[int], window: tuple[int, int], k: int, next_k: int
) -> None:
    proposer = opened(ids, *window)
    draft = proposer.propose(7, k)
    outcomes = proposer.lookahead(7, draft, next_k)
    assert len(outcomes) <= MAX_OUTCOMES
    assert len({outcome.ids for outcome in outcomes}) == len(outcomes)
    assert proposer.propose(7, k) == draft
    for outcome in outcomes:
        kept = len(outcome.ids) - 1
        assert outcome.ids[:kept] == draft.ids[:kept]
        assert kept == len(draft.ids) or outcome.ids[kept] != draft.ids[kept]
        assert outcome.draft == scan(ids + list(outcome.ids), *window, next_k)


def test_the_earliest_of_equally_long_matches_wins() -> None:
    ids = [1, 2, 50, 9, 1, 2, 60, 9, 1, 2]
    assert opened(ids, 2, 2).propose(7, 1) == Draft((50,), 2)


def test_the_longest_match_wins_over_an_earlier_one() -> None:
    ids = [1, 2, 50, 9, 1, 2, 60, 9, 1, 2]
    assert opened(ids, 1, 5).propose(7, 1) == Draft((60,), 3)


def test_a_match_may_overlap_the_suffix_and_the_copy_ends_with_the_text() -> None:
    assert opened([4, 4, 4, 4], 2, 3).propose(7, 8) == Draft((4,), 3)
    assert opened([4, 4, 4, 4], 2, 2).propose(7, 8) == Draft((4, 4), 2)


def test_nothing_is_proposed_below_the_least_window() -> None:
    ids = [1, 2, 3, 1, 2]
    assert opened(ids, 3, 5).propose(7, 4) == NO_DRAFT
    assert opened(ids, 2, 5).propose(7, 4) == Draft((3, 1, 2), 2)


def test_the_defaults_are_vllms() -> None:
    proposer = NgramProposer()
    proposer.open(1, [1, 2, 3, 4, 5, 6, 1, 2, 3, 4], 10, "")
    assert proposer.propose(1, 3) == NO_DRAFT
    proposer.extend(1, [5])
    assert proposer.propose(1, 3) == Draft((6, 1, 2), 5)


def test_sequences_are_independent_and_close_frees_the_id() -> None:
    proposer = NgramProposer(1, 2)
    proposer.open(1, [1, 2, 1], 3, "")
    proposer.open(2, [1, 3, 1], 3, "")
    assert proposer.propose(1, 1).ids == (2,)
    assert proposer.propose(2, 1).ids == (3,)
    proposer.close(1, True)
    proposer.open(1, [5], 1, "")
    assert proposer.propose(1, 1) == NO_DRAFT


def test_lookahead_offers_the_continued_copy_and_a_second_opinion() -> None:
    ids = [8, 2, 70, 9, 1, 2, 60, 61, 62, 63, 64, 1, 2]
    proposer = opened(ids, 1, 2)
    draft = proposer.propose(7, 2)
    assert draft.ids == (60, 61)
    outcomes = {outcome.ids: outcome.draft.ids for outcome in proposer.lookahead(7, draft, 2)}
    assert outcomes == {(60, 61, 62): (63, 64), (70,): (9, 1)}


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (-1, -1)])
def test_a_wrong_window_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"prompt_lookup_min={low}, prompt_lookup_max={high}"):
        NgramProposer(low, high)
