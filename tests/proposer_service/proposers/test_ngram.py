"""The n-gram proposer against a scan of the whole text, as vLLM's rules describe it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proposer_service.proposers.base import (
    MAX_OUTCOMES,
    NO_DRAFT,
    Complete,
    Draft,
    Outcome,
    Pause,
)
from proposer_service.proposers.ngram import NgramProposer
from tests.proposer_service.properties import PROPERTY

TINY = st.lists(st.integers(0, 2), min_size=1, max_size=30)
WINDOWS = st.tuples(st.integers(1, 5), st.integers(0, 4)).map(lambda w: (w[0], w[0] + w[1]))

LONG_WINDOWS = st.tuples(st.integers(2, 4), st.integers(0, 3)).map(lambda w: (w[0], w[0] + w[1]))


def scan(ids: list[int], low: int, high: int, k: int) -> Draft:
    for n in range(min(high, len(ids) - 1), low - 1, -1):
        suffix = ids[-n:]
        for start in range(len(ids) - n):
            if ids[start : start + n] == suffix:
                return Draft(tuple(ids[start + n : start + n + k]), n)
    return NO_DRAFT


def ahead(
    proposer: NgramProposer, draft: Draft, k: int
) -> tuple[dict[tuple[int, ...], Draft], Complete | None]:
    """The drafts by outcome, each at most once, and the claim in front of them."""
    items = list(proposer.lookahead(7, draft, k))
    complete = items.pop(0) if items and isinstance(items[0], Complete) else None
    assert complete is None or isinstance(complete, Complete)
    outcomes = [item for item in items if isinstance(item, Outcome)]
    drafts = {item.ids: item.draft for item in outcomes}
    assert len(drafts) == len(outcomes) <= MAX_OUTCOMES
    assert len(items) - len(outcomes) == items.count(Pause.UNLIKELY) <= 1
    if complete is not None:
        assert len(set(complete.ends)) == len(complete.ends)
        assert {(len(end) - 1, end[-1]) for end in drafts} <= set(complete.ends)
    return drafts, complete


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
    outcomes, complete = ahead(proposer, draft, next_k)
    assert (complete is None) == (window[0] == 1)
    assert proposer.propose(7, k) == draft
    for end, prepared in outcomes.items():
        kept = len(end) - 1
        assert end[:kept] == draft.ids[:kept]
        assert prepared.ids
        assert prepared == scan(ids + list(end), *window, next_k)


@given(TINY, LONG_WINDOWS, st.integers(1, 8), st.integers(1, 8))
@PROPERTY
def test_there_is_a_draft_behind_exactly_the_ends_that_are_named(
    ids: list[int], window: tuple[int, int], k: int, next_k: int
) -> None:
    proposer = opened(ids, *window)
    draft = proposer.propose(7, k)
    _, complete = ahead(proposer, draft, next_k)
    assert complete is not None
    for kept in range(len(draft.ids) + 1):
        for token in range(4):
            end = (*draft.ids[:kept], token)
            assert ((kept, token) in complete.ends) == bool(
                scan(ids + list(end), *window, next_k).ids
            )


def test_the_outcomes_of_a_text_without_a_draft_are_listed_too() -> None:
    proposer = opened([1, 2, 3, 9, 1, 4, 5, 9, 8, 1], 2, 3)
    assert proposer.propose(7, 4) == NO_DRAFT
    outcomes, complete = ahead(proposer, NO_DRAFT, 2)
    assert {end: draft.ids for end, draft in outcomes.items()} == {(2,): (3, 9), (4,): (5, 9)}
    assert complete == Complete([(0, 2), (0, 4)])


def test_a_round_that_verifies_the_beginning_of_a_draft_is_foreseen() -> None:
    proposer = opened([1, 2, 3, 4, 5, 9, 1, 2], 2, 2)
    draft = proposer.propose(7, 3)
    outcomes, complete = ahead(proposer, draft, 2)
    assert {end: ahead.ids for end, ahead in outcomes.items()} == {
        (3, 4, 5, 9): (1, 2),
        (3,): (4, 5),
        (3, 4): (5, 9),
        (3, 4, 5): (9, 1),
    }
    assert complete == Complete([(0, 3), (1, 4), (2, 5), (3, 9)])


def test_what_a_common_token_leaves_no_room_for_is_still_named() -> None:
    ids = [token for n in range(100, 180) for token in (n, 7)] + [100, 7]
    proposer = opened(ids, 2, 2)
    draft = proposer.propose(7, 1)
    assert draft.ids == (101,)
    outcomes, complete = ahead(proposer, draft, 1)
    assert complete is not None
    assert len(outcomes) == MAX_OUTCOMES
    assert (101, 7) in outcomes and (101,) in outcomes
    assert len(complete.ends) == 81


def test_a_draft_longer_than_the_room_is_still_complete() -> None:
    proposer = opened([*range(100), 0, 1], 2, 2)
    draft = proposer.propose(7, 90)
    outcomes, complete = ahead(proposer, draft, 4)
    assert len(outcomes) == MAX_OUTCOMES
    assert complete is not None
    assert len(complete.ends) == 91
    assert (*draft.ids, 92) in outcomes


def test_more_followers_than_may_be_named_are_not_called_complete() -> None:
    ids = [token for n in range(1000, 1600) for token in (n, 7)]
    outcomes, complete = ahead(opened(ids, 2, 2), NO_DRAFT, 1)
    assert len(outcomes) == MAX_OUTCOMES
    assert complete is None


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
    outcomes = {end: ahead.ids for end, ahead in ahead(proposer, draft, 2)[0].items()}
    assert outcomes == {(60, 61, 62): (63, 64), (70,): (9, 1)}


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (-1, -1)])
def test_a_wrong_window_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"prompt_lookup_min={low}, prompt_lookup_max={high}"):
        NgramProposer(low, high)


def test_the_copy_that_goes_on_comes_first_and_its_middle_last() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    proposer = opened(text, 2, 5)
    draft = proposer.propose(7, 3)
    assert draft.ids == (3, 4, 5)
    _, *items = proposer.lookahead(7, draft, 3)
    order = [item.ids if isinstance(item, Outcome) else item for item in items]
    assert order == [(3, 4, 5, 6), (3,), (3, 4), (3, 4, 5)]


def test_the_rarer_of_many_followers_come_after_the_pause() -> None:
    ids = [token for n in range(100, 180) for token in (n, 7)] + [100, 7]
    proposer = opened(ids, 2, 2)
    _, *items = proposer.lookahead(7, proposer.propose(7, 1), 1)
    order = [item.ids if isinstance(item, Outcome) else item for item in items]
    assert order[:3] == [(101, 7), (101,), Pause.UNLIKELY]
    # Behind it the one that was seen last.
    assert order[3] == (100,)
