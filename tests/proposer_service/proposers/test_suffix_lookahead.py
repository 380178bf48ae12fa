"""What suffix decoding names and prepares for the round in flight."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from proposer_service.proposers.base import MAX_OUTCOMES, Complete, Draft, Outcome, Pause
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.proposers.suffix_ends import MAX_FOLLOWERS
from proposer_service.proposers.suffix_options import SuffixOptions
from tests.proposer_service.properties import PROPERTY

TOKENS = 3
TEXT = st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=16)
OUTPUTS = st.lists(TEXT, max_size=3)
OPTIONS = st.builds(
    SuffixOptions,
    max_tree_depth=st.integers(1, 8),
    max_spec_factor=st.sampled_from([0.0, 0.4, 1.0, 3.0]),
    min_token_prob=st.sampled_from([0.0, 0.1, 0.6]),
)


def following(
    outputs: list[list[int]], text: Sequence[int], options: SuffixOptions
) -> SuffixProposer:
    """A proposer that has seen the finished outputs and follows the text as its number 1."""
    proposer = SuffixProposer(options)
    for number, output in enumerate(outputs, start=1000):
        proposer.open(number, output, 0, "")
        proposer.close(number, True)
    proposer.open(1, text, len(text), "")
    return proposer


def ahead(
    proposer: SuffixProposer, draft: Draft, k: int
) -> tuple[list[tuple[int, int]], dict[tuple[int, ...], Draft]]:
    """The ends that are named last, and the drafts that are prepared for some of them."""
    items = list(proposer.lookahead(1, draft, k))
    outcomes = [item for item in items if isinstance(item, Outcome)]
    drafts = {item.ids: item.draft for item in outcomes}
    assert len(drafts) == len(outcomes) <= MAX_OUTCOMES
    first, *others = [item for item in items if isinstance(item, Complete)]
    assert first is items[0]
    complete = others[-1] if others else first
    assert complete is items[-1]
    # What is named first is prepared first, and stays named.
    assert complete.ends[: len(first.ends)] == first.ends
    if others:
        early = items[1 : items.index(Pause.UNLIKELY)]
        prepared = [
            (len(item.ids) - 1, item.ids[-1]) for item in early if isinstance(item, Outcome)
        ]
        assert prepared == [end for end in first.ends if end in prepared]
    assert len(set(complete.ends)) == len(complete.ends)
    assert {(len(ids) - 1, ids[-1]) for ids in drafts} <= set(complete.ends)
    return list(complete.ends), drafts


@given(OUTPUTS, TEXT, OPTIONS, st.integers(1, 5))
@PROPERTY
def test_behind_no_other_end_does_a_draft_rest_on_two_tokens(
    outputs: list[list[int]], text: list[int], options: SuffixOptions, k: int
) -> None:
    proposer = following(outputs, text, options)
    draft = proposer.propose(1, k)
    ends, drafts = ahead(proposer, draft, k)
    assert proposer.propose(1, k) == draft
    for kept in range(len(draft.ids) + 1):
        for token in range(TOKENS + 1):
            later = following(outputs, text, options)
            later.extend(1, [*draft.ids[:kept], token])
            said = later.propose(1, k)
            if (kept, token) not in ends:
                assert said.match_length <= 1
            prepared = drafts.get((*draft.ids[:kept], token))
            if prepared is not None:
                assert 1 <= len(prepared.ids) <= k
                assert len(prepared.confidences) == len(prepared.ids)


@given(TEXT, st.integers(1, 5))
@PROPERTY
def test_the_first_token_prepared_is_one_that_followed(text: list[int], k: int) -> None:
    options = SuffixOptions(max_cached_requests=0, min_token_prob=0.0)
    proposer = following([], text, options)
    draft = proposer.propose(1, k)
    for ids, prepared in ahead(proposer, draft, k)[1].items():
        whole = [*text, *ids]
        tail = whole[len(whole) - prepared.match_length :]
        spots = range(len(whole) - len(tail))
        assert any(whole[i : i + len(tail) + 1] == [*tail, prepared.ids[0]] for i in spots)


def test_the_continued_path_its_beginning_and_what_else_followed_are_prepared() -> None:
    prompt = [5, 6, 10, 11, 12, 13, 14, 9, 5, 6, 10, 11, 12, 13, 15, 9, 5, 6, 20, 21, 22, 9, 5, 6]
    proposer = following([], prompt, SuffixOptions(max_cached_requests=0))
    draft = proposer.propose(1, 2)
    assert draft.ids == (10, 11)
    ends, drafts = ahead(proposer, draft, 2)
    assert drafts[10, 11, 12].ids[0] == 13
    assert drafts[20,].ids == (21, 22)
    assert drafts[10,].ids[0] == 11
    # A draft is verified as a whole, or not at all: its middle is the least likely end.
    assert ends == [(0, 20), (2, 12), (0, 10), (1, 11)]


def test_an_end_that_is_likely_comes_before_one_that_is_not() -> None:
    prompt = [5, 6, 7] * 5 + [5, 6, 8, 5, 6]
    proposer = following([], prompt, SuffixOptions(max_cached_requests=0))
    draft = proposer.propose(1, 1)
    assert draft.ids == (7,)
    ends, _ = ahead(proposer, draft, 1)
    assert ends == [(1, 5), (0, 7), (0, 8)]


def test_the_outcomes_of_other_requests_are_foreseen() -> None:
    proposer = following([[60, 61, 62, 63]], [9, 61], SuffixOptions())
    ends, drafts = ahead(proposer, Draft(()), 4)
    assert ends == [(0, 62)]
    assert drafts[62,].ids == (63,)


def test_another_tenants_outputs_are_no_outcomes() -> None:
    proposer = SuffixProposer()
    proposer.open(1000, [60, 61, 62, 63], 0, "theirs")
    proposer.close(1000, True)
    proposer.open(1, [9, 61], 2, "mine")
    assert ahead(proposer, Draft(()), 4) == ([], {})


def test_where_nothing_may_be_drafted_nothing_is_expected() -> None:
    proposer = following([], [1, 2, 1, 2, 1], SuffixOptions(max_spec_factor=0.0))
    assert ahead(proposer, proposer.propose(1, 4), 4) == ([], {})


def test_rare_followers_of_a_common_token_are_left_out() -> None:
    text = [token for other in range(100, 300) for token in (7, other)]
    text += [7, 100, 7, 100, 7, 101, 7]
    proposer = following([], text, SuffixOptions(max_cached_requests=0))
    ends, drafts = ahead(proposer, Draft(()), 4)
    assert len(ends) == MAX_FOLLOWERS
    # What followed the longer tail, then by frequency.
    assert ends[:3] == [(0, 102), (0, 100), (0, 101)]
    assert set(drafts) == {(token,) for _, token in ends}
