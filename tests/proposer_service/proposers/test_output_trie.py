"""The trie of outputs against counting in them, also after some were taken out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proposer_service.proposers.output_trie import OutputTrie
from tests.proposer_service.properties import PROPERTY

OUTPUT = st.lists(st.integers(0, 2), max_size=20)
# Pieces of each output, whether it is finished and whether it is removed afterwards.
OUTPUTS = st.lists(
    st.tuples(st.lists(OUTPUT, max_size=3), st.booleans(), st.booleans()), max_size=6
)


def filled(
    outputs: list[tuple[list[list[int]], bool, bool]], depth: int
) -> tuple[OutputTrie, Counter[tuple[int, ...]]]:
    """The trie, and how often it should hold each string."""
    trie = OutputTrie(depth)
    expected: Counter[tuple[int, ...]] = Counter()
    doomed = []
    for pieces, finished, removed in outputs:
        number = trie.add()
        ids: list[int] = []
        for piece in pieces:
            trie.extend(number, piece)
            ids += piece
        if finished:
            trie.finish(number)
        if removed:
            doomed.append(number)
            continue
        for start in range(len(ids)):
            if finished or start + depth <= len(ids):
                for end in range(start + 1, min(start + depth, len(ids)) + 1):
                    expected[tuple(ids[start:end])] += 1
    for number in doomed:
        trie.remove(number)
    return trie, expected


@given(OUTPUTS, st.integers(2, 6))
@PROPERTY
def test_a_string_is_followed_token_by_token(
    outputs: list[tuple[list[list[int]], bool, bool]], depth: int
) -> None:
    trie, expected = filled(outputs, depth)
    for ids in expected:
        if len(ids) == depth:
            continue
        place = trie.find(ids, 0)
        assert place is not None
        behind = {token: expected[*ids, token] for token in range(4) if (*ids, token) in expected}
        followers = trie.likeliest_followers(place, len(ids), 4)
        assert {token: count for count, token in followers} == behind
        assert len(followers) == len(behind)
        assert [count for count, _ in followers] == sorted(behind.values(), reverse=True)
        assert trie.likeliest_followers(place, len(ids), 1) == followers[:1]


@given(OUTPUTS, st.integers(2, 6), st.lists(st.integers(0, 2), min_size=2, max_size=12))
@PROPERTY
def test_the_tails_of_a_text_that_goes_on_are_those_of_the_longer_text(
    outputs: list[tuple[list[list[int]], bool, bool]], depth: int, text: list[int]
) -> None:
    trie, _ = filled(outputs, depth)
    before = tuple(text[-depth:])
    tails = trie.tails(before)
    for length, place in enumerate(tails, start=1):
        assert place == trie.find(before, len(before) - length)
    if len(tails) + 1 < len(before):
        assert trie.find(before, len(before) - len(tails) - 1) is None
    for token in range(4):
        assert trie.follow(tails, token) == trie.tails((*text, token)[-depth:])


def test_many_followers_are_ranked_anew_once_their_string_is_more_frequent() -> None:
    trie = OutputTrie(2)
    number = trie.add()
    trie.extend(number, [token for other in range(10, 40) for token in (1, other)])
    place = trie.find((1,), 0)
    assert place is not None
    assert [count for count, _ in trie.likeliest_followers(place, 1, 32)] == [1] * 30
    # Seen for the first time, and nothing else has changed: it is not left out.
    trie.extend(number, [1, 50, 1])
    assert trie.likeliest_followers(place, 1, 32)[-1] == (1, 50)
    trie.extend(number, [15, 1] * 8)
    assert trie.likeliest_followers(place, 1, 32)[0] == (9, 15)
    trie.remove(number)
    assert trie.find((1,), 0) is None


@given(OUTPUTS, st.integers(1, 6))
@PROPERTY
def test_counts_are_those_of_the_outputs_that_are_left(
    outputs: list[tuple[list[list[int]], bool, bool]], depth: int
) -> None:
    trie, expected = filled(outputs, depth)
    for ids, count in expected.items():
        place = trie.find((9, *ids), 1)
        assert place is not None
        assert trie.occurrences(place) == count
        if len(ids) < depth:
            for token in range(4):
                if (*ids, token) not in expected:
                    assert trie.find((*ids, token), 0) is None


@given(OUTPUTS, st.integers(1, 6), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 1))
@PROPERTY
def test_paths_take_a_most_frequent_successor_at_each_step(
    outputs: list[tuple[list[list[int]], bool, bool]], depth: int, least: float, unseen: int
) -> None:
    trie, expected = filled(outputs, depth)
    for ids, count in expected.items():
        place = trie.find(ids, 0)
        assert place is not None
        path, probabilities = trie.likeliest_path(place, len(ids), 4, least, unseen)
        total = count + unseen
        probability = 1.0
        text = ids
        for token, given_probability in zip(path, probabilities, strict=True):
            followers = {t: expected[(*text, t)] for t in range(3)}
            assert followers[token] == max(followers.values())
            probability *= followers[token] / total
            assert given_probability == pytest.approx(probability)
            assert given_probability >= least
            text = (*text, token)
            total = expected[text]
        if len(path) < 4:
            followers = {t: expected[(*text, t)] for t in range(3)}
            best = max(followers.values())
            stopped_by_probability = best and probability * best / total < least + 1e-9
            assert best == 0 or stopped_by_probability


@given(OUTPUTS, st.integers(1, 6))
@PROPERTY
def test_taking_all_out_leaves_nothing(
    outputs: list[tuple[list[list[int]], bool, bool]], depth: int
) -> None:
    trie, _ = filled([(pieces, finished, True) for pieces, finished, _ in outputs], depth)
    assert len(trie) == 0
    assert trie.nodes == 1
    assert all(trie.find((token,), 0) is None for token in range(3))


@given(OUTPUTS, st.integers(1, 6))
@PROPERTY
def test_removal_leaves_at_most_a_node_for_each_window(
    outputs: list[tuple[list[list[int]], bool, bool]], depth: int
) -> None:
    trie, _ = filled(outputs, depth)
    fresh, _ = filled([output for output in outputs if not output[2]], depth)
    # A window that was in the trie twice keeps its node when it becomes unique.
    windows = sum(sum(map(len, pieces)) for pieces, _, removed in outputs if not removed)
    assert trie.nodes <= fresh.nodes + windows


def test_strings_that_begin_in_the_last_ids_wait_for_the_output_to_finish() -> None:
    trie = OutputTrie(3)
    number = trie.add()
    trie.extend(number, [1, 2])
    assert trie.find((1,), 0) is None
    trie.extend(number, [3, 4])
    assert trie.find((1, 2, 3), 0) is not None
    assert trie.find((2, 3, 4), 0) is not None
    assert trie.find((3,), 0) is None
    trie.finish(number)
    assert trie.find((3, 4), 0) is not None
    assert trie.find((4,), 0) is not None


def test_a_string_that_occurs_once_needs_no_node() -> None:
    trie = OutputTrie(24)
    number = trie.add()
    trie.extend(number, list(range(1000)))
    trie.finish(number)
    assert trie.nodes == 1
