"""One answer's way through a grammar: what is admitted, masked, committed, and when it ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifier_service.grammar.toy_grammar import (
    OTHER_STOP,
    PIECES,
    STOP,
    VOCABULARY,
    compiler,
    constraint,
    ids_of,
    regex,
)
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.grammar.vocabulary import Vocabulary

A, B, C, AB, BC, ONE = range(6)


def test_the_first_row_stands_behind_the_committed_output() -> None:
    matcher = constraint("ab*c")
    assert ids_of(matcher.masks([])[0]) == {A, AB}
    matcher.advance([A])
    assert ids_of(matcher.masks([])[0]) == {B, C, BC}


def test_a_row_stands_behind_each_draft() -> None:
    rows = constraint("ab*c").masks([A, BC])
    assert [ids_of(row) for row in rows] == [{A, AB}, {B, C, BC}, {STOP}]


def test_rows_behind_a_refused_draft_allow_everything() -> None:
    rows = constraint("ab*c").masks([A, A, B])
    assert [ids_of(row) for row in rows[:2]] == [{A, AB}, {B, C, BC}]
    assert (rows[2:] == -1).all()


def test_rows_behind_the_end_allow_everything() -> None:
    """openvino.genai #4081: drafts went on past the stop token, and the matcher asserted."""
    matcher = constraint("a")
    rows = matcher.masks([A, STOP, A, STOP])
    assert [ids_of(row) for row in rows[:2]] == [{A}, {STOP}]
    assert (rows[2:] == -1).all()
    assert matcher.admitted([A, STOP, A]) == 2
    assert not matcher.ended


def test_admitted_counts_the_leading_ids_that_fit() -> None:
    matcher = constraint("ab*c")
    assert matcher.admitted([]) == 0
    assert matcher.admitted([A, B, B, C, STOP]) == 5
    assert matcher.admitted([AB, A, B]) == 1
    assert matcher.admitted([C]) == 0


@pytest.mark.parametrize("nonsense", [-1, len(PIECES), 10**6, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_refused(nonsense: int) -> None:
    matcher = constraint("a*")
    assert matcher.admitted([A, nonsense, A]) == 1
    assert (matcher.masks([nonsense])[1] == -1).all()


def test_an_id_without_text_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert constraint("a*").admitted([OTHER_STOP]) == 0
    assert capfd.readouterr() == ("", "")


def test_the_end_is_a_stop_id_where_the_structure_is_complete() -> None:
    matcher = constraint("ab?")
    assert matcher.admitted([STOP]) == 0 and not matcher.complete
    matcher.advance([A])
    assert matcher.complete and not matcher.ended
    matcher.advance([STOP])
    assert matcher.complete and matcher.ended


def test_a_requests_own_stop_ids_end_it_too() -> None:
    matcher = GrammarConstraint(regex("a"), [OTHER_STOP])
    matcher.advance([A])
    assert ids_of(matcher.masks([])[0]) == {STOP, OTHER_STOP}
    matcher.advance([OTHER_STOP])
    assert matcher.ended


def test_without_any_stop_id_nothing_is_allowed_at_the_end() -> None:
    vocabulary = Vocabulary(VOCABULARY.pieces, ())
    grammar = type(compiler())(vocabulary.info(), max_threads=1).compile_regex("a")
    matcher = GrammarConstraint(grammar)
    matcher.advance([A])
    assert matcher.complete and not matcher.ended
    assert ids_of(matcher.masks([])[0]) == set()


def test_a_refused_commit_is_an_error_that_names_the_token() -> None:
    """vLLM #44006, #46118, #46249: the matcher refuses what was accepted."""
    matcher = constraint("ab")
    with pytest.raises(ValueError, match=f"token {C} was refused"):
        matcher.advance([A, C])


def test_masks_are_as_wide_as_a_padded_vocabulary() -> None:
    vocabulary = Vocabulary((*VOCABULARY.pieces, *[b""] * 60), (STOP,))
    grammar = type(compiler())(vocabulary.info(), max_threads=1).compile_regex("[^x]*")
    rows = GrammarConstraint(grammar).masks([A])
    assert rows.shape == (2, 3) and rows.dtype == np.int32
    allowed = {i for i in range(72) if int(rows[0][i // 32]) >> (i % 32) & 1}
    assert allowed == set(range(len(PIECES))) - {OTHER_STOP}


@given(
    pattern=st.sampled_from(["ab*c", "(a|bc)*", r"\[(1,)*1\]", "[^1]{3,5}", "a"]),
    committed=st.lists(st.integers(0, len(PIECES) - 1), max_size=6),
    drafts=st.lists(st.integers(0, len(PIECES) - 1), max_size=9),
)
@settings(max_examples=100, deadline=None)
def test_looking_ahead_changes_nothing(
    pattern: str, committed: list[int], drafts: list[int]
) -> None:
    looking, walking = constraint(pattern), constraint(pattern)
    legal = committed[: walking.admitted(committed)]
    looking.advance(legal)
    walking.advance(legal)
    if looking.ended:
        return
    count = looking.admitted(drafts)
    rows = looking.masks(drafts)
    for row, draft in zip(rows, drafts[:count], strict=False):
        assert ids_of(row) == ids_of(walking.masks([])[0])
        assert draft in ids_of(row)
        walking.advance([draft])
    if not walking.ended:
        assert ids_of(rows[count]) == ids_of(walking.masks([])[0])
        if count < len(drafts):
            assert drafts[count] not in ids_of(rows[count])
    looking.advance(drafts[:count])
    assert looking.ended == walking.ended and looking.complete == walking.complete
