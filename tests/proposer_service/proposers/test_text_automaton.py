"""The automaton's counts against counting in the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proposer_service.proposers.text_automaton import ROOT, TextAutomaton
from tests.proposer_service.properties import PROPERTY

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def occurrences(text: list[int], part: list[int]) -> int:
    n = len(part)
    return sum(text[i : i + n] == part for i in range(len(text) - n + 1))


def successors_seen(text: list[int], part: list[int]) -> dict[int, int]:
    """Counts by token, in the order of each one's last occurrence."""
    seen: dict[int, int] = {}
    n = len(part)
    for i in range(len(text) - n):
        if text[i : i + n] == part:
            token = text[i + n]
            seen[token] = seen.pop(token, 0) + 1
    return seen


def state_of(automaton: TextAutomaton, part: list[int]) -> int:
    state = ROOT
    for token in part:
        state = automaton.successors[state][token]
    return state


@given(TEXT, st.integers(1, 6))
@PROPERTY
def test_counts_and_best_successors_are_those_of_the_text(text: list[int], depth: int) -> None:
    automaton = TextAutomaton(depth)
    automaton.extend(text)
    for start in range(len(text)):
        for end in range(start + 1, min(start + depth, len(text)) + 1):
            part = text[start:end]
            state = state_of(automaton, part)
            assert automaton.count[state] == occurrences(text, part)
            if len(part) < depth:
                seen = successors_seen(text, part)
                best = max(reversed(seen), key=seen.__getitem__, default=-1)
                assert automaton.best[state] == best
                assert automaton.best_count[state] == seen.get(best, 0)


@given(st.lists(TEXT, min_size=1, max_size=5), st.integers(1, 6))
@PROPERTY
def test_the_tail_is_known_after_every_extension(parts: list[list[int]], depth: int) -> None:
    automaton = TextAutomaton(depth)
    text: list[int] = []
    for part in parts:
        automaton.extend(part)
        text += part
        assert automaton.tail_length == min(depth, len(text))
        tail = text[-automaton.tail_length :]
        assert automaton.tail == state_of(automaton, tail)


@given(TEXT, st.lists(st.integers(0, 3), max_size=6), st.integers(1, 6))
@PROPERTY
def test_follow_finds_the_longest_known_tail_and_changes_nothing(
    text: list[int], ids: list[int], depth: int
) -> None:
    automaton = TextAutomaton(depth)
    automaton.extend(text)
    states = len(automaton.count)
    state, length = automaton.tail, automaton.tail_length
    for token in ids:
        state, length = automaton.follow_one(state, length, token)
    whole = text + ids
    for expected in range(min(depth, len(whole)), 0, -1):
        if occurrences(text, whole[-expected:]):
            assert length == expected
            assert state == state_of(automaton, whole[-expected:])
            break
    else:
        assert (state, length) == (ROOT, 0)
    assert len(automaton.count) == states


def test_a_path_multiplies_count_ratios_and_ends_under_the_least_probability() -> None:
    automaton = TextAutomaton(8)
    # 1 is followed by 2 three times and by 3 once; 2 by 4 twice and by 5 once.
    automaton.extend([1, 2, 4, 9, 1, 2, 5, 9, 1, 3, 9, 1, 2, 4, 9])
    state = state_of(automaton, [1])
    ids, probabilities = automaton.likeliest_path(state, 2, 0.1, unseen=0)
    assert ids == [2, 4]
    assert probabilities == [3 / 4, 3 / 4 * 2 / 3]
    assert automaton.likeliest_path(state, 2, 0.6, unseen=0)[0] == [2]
    assert automaton.likeliest_path(state, 2, 0.76, unseen=0)[0] == []
    assert automaton.likeliest_path(state, 1, 0.1, unseen=1) == ([2], [3 / 5])


def test_the_followers_of_a_tail_come_by_how_often_they_followed() -> None:
    automaton = TextAutomaton(8)
    automaton.extend([1, 3, 9, 1, 2, 9, 1, 2, 9, 1])
    assert automaton.likeliest_followers(state_of(automaton, [1])) == [(2, 2), (1, 3)]
    assert automaton.likeliest_followers(state_of(automaton, [2])) == [(2, 9)]


def test_a_text_that_repeats_one_token_costs_no_more_states_than_tokens() -> None:
    automaton = TextAutomaton(24)
    automaton.extend([5] * 5000)
    assert len(automaton.count) == 5001
    assert automaton.count[state_of(automaton, [5] * 24)] == 4977
