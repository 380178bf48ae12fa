from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier_service.stops import StopMatcher


def feed(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        match = matcher.push(piece)
        shown += match.text
        if match.stop is not None:
            return shown, match.stop
    return shown + matcher.finish(), None


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Every prefix in turn: the first that ends with a stop string, the longest of them."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    include=st.booleans(),
)
def test_cuts_never_change_the_answer(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert feed(StopMatcher(stops, include=include), pieces) == reference(text, stops, include)


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_exactly_the_longest_possible_beginning_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, character in enumerate(text, start=1):
        match = matcher.push(character)
        if match.stop is not None:
            return
        shown += match.text
        longest = max(
            n
            for stop in stops
            for n in range(len(stop))
            if n <= end and text[:end].endswith(stop[:n])
        )
        assert shown == text[: end - longest]


def test_text_after_the_stop_string_in_the_same_piece_is_dropped() -> None:
    assert feed(StopMatcher(["END"]), ["one END two"]) == ("one ", "END")


def test_a_stop_string_across_three_pieces() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.push(p).text for p in ("one E", "N", "D two")] == ["one ", "", ""]


def test_a_false_start_is_shown_once_it_is_known_to_be_one() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("E").text == ""
    assert matcher.push("NE").text == "EN"
    assert matcher.finish() == "E"


def test_the_match_that_completes_first_wins() -> None:
    assert feed(StopMatcher(["abcd", "bc"]), ["xabcd"]) == ("xa", "bc")


def test_the_longest_of_those_that_complete_together_wins() -> None:
    assert feed(StopMatcher(["c", "abc"]), ["xabc"]) == ("x", "abc")


def test_the_stop_string_is_kept_when_asked() -> None:
    assert feed(StopMatcher(["END"], include=True), ["one E", "ND two"]) == ("one END", "END")


def test_characters_with_a_meaning_in_patterns_are_literal() -> None:
    assert feed(StopMatcher(["]^", "-."]), ["a^b-x]", "^z"]) == ("a^b-x", "]^")


@pytest.mark.parametrize("stops", [[], [""], ["a", ""]])
def test_empty_stop_strings_are_refused(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="stop strings"):
        StopMatcher(stops)
