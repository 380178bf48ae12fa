"""The suffix proposer against a search over all tails, counting in the texts themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proposer_service.proposers.base import NO_DRAFT, Draft
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.proposers.suffix_options import SuffixOptions
from tests.proposer_service.properties import PROPERTY

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=30)
OPTIONS = st.builds(
    SuffixOptions,
    max_tree_depth=st.integers(1, 9),
    max_cached_requests=st.just(0),
    max_spec_factor=st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]),
    min_token_prob=st.sampled_from([0.0, 0.1, 0.4, 0.9]),
)


def search(text: list[int], options: SuffixOptions, k: int) -> Draft:
    """The local tree's draft; of equally frequent successors the one seen last goes on."""
    best, best_score = NO_DRAFT, 0.0
    depth = options.max_tree_depth
    for length in range(1, min(depth, len(text))):
        ids: list[int] = []
        probabilities: list[float] = []
        probability = 1.0
        limit = min(k, int(length * options.max_spec_factor + 1e-6), depth - length)
        while len(ids) < limit:
            part = text[-length:] + ids
            n = len(part)
            ends = [end for end in range(n, len(text) + 1) if text[end - n : end] == part]
            counts: dict[int, int] = {}
            for end in ends:
                if end < len(text):
                    counts[text[end]] = counts.pop(text[end], 0) + 1
            if not counts:
                break
            token = max(reversed(counts), key=counts.__getitem__)
            probability *= counts[token] / len(ends)
            if probability < options.min_token_prob:
                break
            ids.append(token)
            probabilities.append(probability)
        if ids and sum(probabilities) >= best_score:
            best = Draft(tuple(ids), length, tuple(probabilities))
            best_score = sum(probabilities)
    return best


def proposer_with(*texts: tuple[list[int], list[int]], **options: float) -> SuffixProposer:
    """Finished requests of (prompt, output)."""
    proposer = SuffixProposer(SuffixOptions(**options))  # type: ignore[arg-type]
    for number, (prompt, output) in enumerate(texts, start=1000):
        proposer.open(number, prompt, len(prompt), "")
        proposer.extend(number, output)
        proposer.close(number, True)
    return proposer


def draft_for(proposer: SuffixProposer, prompt: list[int], k: int = 8, salt: str = "") -> Draft:
    proposer.open(1, prompt, len(prompt), salt)
    draft = proposer.propose(1, k)
    proposer.close(1, False)
    return draft


@given(TEXT, OPTIONS, st.integers(1, 6))
@PROPERTY
def test_local_drafts_equal_a_search_over_all_tails(
    text: list[int], options: SuffixOptions, k: int
) -> None:
    proposer = SuffixProposer(options)
    proposer.open(1, text, len(text), "")
    assert proposer.propose(1, k) == search(text, options, k)


@given(st.lists(TEXT, min_size=1, max_size=5), OPTIONS, st.integers(1, 6))
@PROPERTY
def test_growing_equals_opening_at_once(
    parts: list[list[int]], options: SuffixOptions, k: int
) -> None:
    proposer = SuffixProposer(options)
    proposer.open(1, parts[0], len(parts[0]), "")
    text = list(parts[0])
    for part in parts[1:]:
        proposer.extend(1, part)
        text += part
        assert proposer.propose(1, k) == search(text, options, k)


@given(
    st.lists(TEXT, max_size=4),
    TEXT,
    st.integers(0, 30),
    st.integers(2, 9),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.integers(1, 6),
)
@PROPERTY
def test_the_best_tail_of_both_trees_wins_and_the_local_tree_first(
    outputs: list[list[int]], text: list[int], prompt: int, depth: int, least: float, k: int
) -> None:
    options = SuffixOptions(max_tree_depth=depth, min_token_prob=least)
    prompt_length = min(prompt, len(text))
    proposer = SuffixProposer(options)
    for number, output in enumerate(outputs, start=1000):
        proposer.open(number, [7], 1, "")
        proposer.extend(number, output)
        proposer.close(number, True)
    proposer.open(1, text, prompt_length, "")
    draft = proposer.propose(1, k)
    local = search(text, options, k)
    trie = proposer._tries[""]
    candidates = []
    for length in range(1, min(depth, len(text))):
        place = trie.find(tuple(text), len(text) - length)
        if place is not None:
            unseen = int(length <= len(text) - prompt_length)
            limit = min(k, length, depth - length)
            ids, found = trie.likeliest_path(place, length, limit, least, unseen)
            candidates.append((sum(found), length, ids))
    score, length, ids = max(candidates, default=(0.0, 0, []))
    if score > sum(local.confidences):
        assert (draft.ids, draft.match_length) == (tuple(ids), length)
        assert sum(draft.confidences) == pytest.approx(score)
    else:
        assert draft == local


def test_an_output_drafts_for_later_requests_and_a_prompt_does_not() -> None:
    proposer = proposer_with(([50, 51, 52, 53], [60, 61, 62, 63]))
    assert draft_for(proposer, [9, 60, 61]).ids == (62, 63)
    assert draft_for(proposer, [9, 50, 51]) == NO_DRAFT


def test_the_part_of_an_open_behind_the_prompt_is_output() -> None:
    proposer = SuffixProposer()
    proposer.open(1000, [50, 51, 60, 61, 62], 2, "")
    proposer.close(1000, True)
    assert draft_for(proposer, [9, 60, 61]).ids == (62,)
    assert draft_for(proposer, [9, 50, 51]) == NO_DRAFT


def test_a_prompt_told_in_pieces_stays_a_prompt() -> None:
    proposer = SuffixProposer()
    proposer.open(1000, [50], 3, "")
    proposer.extend(1000, [51, 52, 60, 61, 62])
    proposer.close(1000, True)
    assert draft_for(proposer, [9, 51, 52]) == NO_DRAFT
    assert draft_for(proposer, [9, 60, 61]).ids == (62,)


def test_without_cached_requests_there_is_no_global_tree() -> None:
    proposer = proposer_with(([1], [60, 61, 62]), max_cached_requests=0)
    assert draft_for(proposer, [9, 60, 61]) == NO_DRAFT


def test_requests_of_another_salt_are_invisible() -> None:
    proposer = proposer_with(([1], [60, 61, 62]))
    assert draft_for(proposer, [9, 60, 61], salt="other tenant") == NO_DRAFT
    assert draft_for(proposer, [9, 60, 61], salt="").ids == (62,)


def test_the_oldest_request_is_evicted_first_and_its_counts_go() -> None:
    old = ([1], [60, 61, 62])
    new = ([1], [60, 61, 63])
    proposer = proposer_with(old, old, new, max_cached_requests=4)
    # The request that asks takes a place of its own.
    assert draft_for(proposer, [9, 60, 61]).ids == (62,)
    proposer = proposer_with(old, old, new, max_cached_requests=2)
    draft = draft_for(proposer, [9, 60, 61])
    assert draft.ids == (63,)
    assert draft.confidences == (1.0,)


def test_a_running_request_that_was_evicted_adds_nothing_more() -> None:
    proposer = SuffixProposer(SuffixOptions(max_cached_requests=1))
    proposer.open(1000, [1], 1, "")
    proposer.extend(1000, [60, 61, 62])
    proposer.open(1001, [1], 1, "")
    proposer.extend(1000, [63])
    proposer.close(1000, True)
    assert proposer.propose(1001, 4) == NO_DRAFT
    proposer.extend(1001, [60, 61])
    assert proposer.propose(1001, 4) == NO_DRAFT


def test_a_running_output_is_seen_by_others_once_the_answer_is_sent() -> None:
    proposer = SuffixProposer()
    proposer.open(1000, [1], 1, "")
    proposer.extend(1000, list(range(60, 100)))
    assert draft_for(proposer, [9, 60, 61]) == NO_DRAFT
    proposer.settle()
    assert draft_for(proposer, [9, 60, 61]).ids == (62, 63)


def test_an_unfinished_request_leaves_nothing() -> None:
    proposer = SuffixProposer()
    proposer.open(1000, [1], 1, "")
    proposer.extend(1000, list(range(60, 100)))
    proposer.close(1000, False)
    assert draft_for(proposer, [9, 60, 61]) == NO_DRAFT


def test_a_draft_is_no_longer_than_its_tail_and_the_tree_is_deep() -> None:
    output = list(range(100, 160))
    proposer = proposer_with(([1], output))
    assert len(draft_for(proposer, [9, *output[:3]], k=32).ids) == 3
    assert len(draft_for(proposer, [9, *output[:12]], k=32).ids) == 12
    assert len(draft_for(proposer, [9, *output[:20]], k=32).ids) == 12
    wide = proposer_with(([1], output), max_spec_factor=2.0, max_tree_depth=64)
    assert len(draft_for(wide, [9, *output[:3]], k=32).ids) == 6


def test_confidences_are_count_ratios_of_the_path() -> None:
    twice = ([1], [70, 71, 72, 74])
    proposer = proposer_with(([1], [70, 71, 72, 73]), twice, twice, max_spec_factor=2.0)
    draft = draft_for(proposer, [9, 70, 71])
    assert draft == Draft((72, 74), 2, (1.0, 2 / 3))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tree_depth", 0),
        ("max_cached_requests", -1),
        ("max_spec_factor", -0.5),
        ("max_spec_factor", float("nan")),
        ("min_token_prob", 1.5),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"suffix_decoding_{name}="):
        SuffixOptions(**{name: value})  # type: ignore[arg-type]
