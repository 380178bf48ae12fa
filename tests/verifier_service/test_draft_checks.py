from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculation.v1 import proposer_pb2, types_pb2

from verifier_service.draft_checks import Q_FORMS, Q_UNIT, BadBlockError, check_block, cut_block
from verifier_service.messages import DraftBlock, QForm, SparseRow

HALF = Q_UNIT // 2


def message(**fields: object) -> proposer_pb2.DraftBlock:
    values: dict[str, object] = {
        "sequence_id": 1,
        "epoch": 1,
        "base_length": 10,
        "token_ids": [5, 6],
        "q_form": types_pb2.Q_FORM_ONE_HOT,
    }
    return proposer_pb2.DraftBlock(**{**values, **fields})  # type: ignore[arg-type]


def sparse(
    row_lengths: list[int], token_ids: list[int], masses: list[int], **fields: object
) -> proposer_pb2.DraftBlock:
    q = types_pb2.SparseDistribution(row_lengths=row_lengths, token_ids=token_ids, masses=masses)
    return message(q_form=types_pb2.Q_FORM_SPARSE, q=q, **fields)


def check(
    block: proposer_pb2.DraftBlock, k: int = 4, q_forms: Mapping[int, QForm] = Q_FORMS
) -> DraftBlock:
    return check_block(
        block, proposer="p", max_draft_tokens=k, vocabulary_size=100, q_forms=q_forms
    )


def reason(block: proposer_pb2.DraftBlock, **options: object) -> str:
    with pytest.raises(BadBlockError) as caught:
        check(block, **options)  # type: ignore[arg-type]
    return caught.value.reason


def test_a_good_block_keeps_all_it_says() -> None:
    block = check(message(match_length=7, confidences=[1.0, 0.5], draft_ns=42, parents=[-1, 0]))
    assert block == DraftBlock("p", 10, (5, 6), QForm.ONE_HOT, (), 7, (1.0, 0.5), 42)


def test_an_empty_block_is_no_fault() -> None:
    assert check(message(token_ids=[])).token_ids == ()


def test_longer_than_asked() -> None:
    assert reason(message(token_ids=[1, 2, 3]), k=2) == "too_long"


@pytest.mark.parametrize("token_id", [-1, 100, 2**31 - 1, -(2**31)])
def test_ids_outside_the_vocabulary(token_id: int) -> None:
    assert reason(message(token_ids=[5, token_id])) == "out_of_range"


@pytest.mark.parametrize("parents", [[-1, -1], [0, 1], [-1], [-1, 0, 1], [-1, 7]])
def test_trees_are_not_taken(parents: list[int]) -> None:
    assert reason(message(parents=parents)) == "tree"


@pytest.mark.parametrize(
    "q_form", [types_pb2.Q_FORM_UNSPECIFIED, types_pb2.Q_FORM_DENSE, types_pb2.Q_FORM_COUPLED, 77]
)
def test_q_forms_that_were_not_agreed_on(q_form: int) -> None:
    assert reason(message(q_form=q_form), q_forms={types_pb2.Q_FORM_ONE_HOT: QForm.ONE_HOT}) == (
        "unsupported_q_form"
    )


@pytest.mark.parametrize("confidences", [[0.5], [0.5, math.nan], [0.5, 1.5], [math.inf, 0.1]])
def test_confidences_must_be_one_probability_per_draft(confidences: list[float]) -> None:
    assert reason(message(confidences=confidences)) == "bad_confidence"


def test_a_match_longer_than_the_context() -> None:
    assert reason(message(match_length=11)) == "bad_match_length"


def test_sparse_q_becomes_rows() -> None:
    block = check(sparse([1, 2], [5, 6, 9], [Q_UNIT, HALF, HALF]))
    assert block.q == (SparseRow((5,), (Q_UNIT,)), SparseRow((6, 9), (HALF, HALF)))


@pytest.mark.parametrize(
    ("row_lengths", "token_ids", "masses"),
    [
        ([1], [5], [Q_UNIT]),  # a row is missing
        ([1, 1, 1], [5, 6, 7], [Q_UNIT] * 3),  # a row too many
        ([1, 2], [5, 6], [Q_UNIT, Q_UNIT]),  # lengths exceed the ids
        ([1, 1], [5, 6], [Q_UNIT]),  # fewer masses than ids
        ([1, 1], [5, 6, 7], [Q_UNIT, Q_UNIT]),  # ids beyond the rows
        ([0, 2], [6, 7], [HALF, HALF]),  # an empty row
        ([1, 1], [5, 6], [Q_UNIT, Q_UNIT - 1]),  # does not sum to one
        ([1, 2], [5, 6, 7], [Q_UNIT, Q_UNIT, 0]),  # a mass of nothing
        ([1, 2], [5, 6, 6], [Q_UNIT, HALF, HALF]),  # an id twice
        ([1, 2], [5, 6, 100], [Q_UNIT, HALF, HALF]),  # out of the vocabulary
        ([1, 2], [5, 6, -1], [Q_UNIT, HALF, HALF]),
        ([1, 1], [5, 7], [Q_UNIT, Q_UNIT]),  # the draft is not in its q
    ],
)
def test_unsound_q(row_lengths: list[int], token_ids: list[int], masses: list[int]) -> None:
    assert reason(sparse(row_lengths, token_ids, masses)) == "bad_q"


def test_sparse_form_without_q() -> None:
    assert reason(message(q_form=types_pb2.Q_FORM_SPARSE)) == "bad_q"


def test_q_rows_with_a_form_that_has_none() -> None:
    q = types_pb2.SparseDistribution(row_lengths=[1], token_ids=[5], masses=[Q_UNIT])
    assert reason(message(q=q)) == "bad_q"


def test_cutting_keeps_rows_and_confidences_in_step() -> None:
    block = check(sparse([1, 2], [5, 6, 9], [Q_UNIT, HALF, HALF], confidences=[0.75, 0.5]))
    cut = cut_block(block, 1)
    assert (cut.token_ids, cut.q, cut.confidences) == (
        (5,),
        (SparseRow((5,), (Q_UNIT,)),),
        (0.75,),
    )
    assert cut_block(block, 2) is block


@given(st.binary(max_size=200))
def test_no_bytes_harm_the_check(data: bytes) -> None:
    block = proposer_pb2.DraftBlock()
    try:
        block.ParseFromString(data)
    except Exception:  # Unparsable bytes never reach the check.
        return
    try:
        checked = check(block)
    except BadBlockError:
        return
    assert len(checked.token_ids) <= 4
    assert all(0 <= token_id < 100 for token_id in checked.token_ids)
