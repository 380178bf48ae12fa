"""A session asks a batching method once for all sequences of a step."""

from __future__ import annotations

import logging

import pytest
from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.draft_model.proposer import Budgets
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.session import Session
from tests.proposer_service.draft_model.drafting import DRAFT, Drafting, said
from tests.proposer_service.verifier import commit, opening, step
from verifier_service.messages import Sampling

TEXT = [1, 2, 3, 1, 2]


def session_of(drafting: Drafting, *, coupled: bool = True, context_limit: int = 0) -> Session:
    limits = SequenceLimits(8, context_limit, 4, "v", coupled=coupled)
    return Session(drafting.proposer, sequence_numbers(), limits, 8, "verifier-1")


def sampled(
    update: proposer_pb2.SequenceUpdate, temperature: float, seed: int
) -> proposer_pb2.SequenceUpdate:
    update.open.sampling.CopyFrom(
        types_pb2.DraftSampling(temperature=temperature, top_p=1.0, seed=seed & (1 << 64) - 1)
    )
    return update


def ids_of(drafts: proposer_pb2.Drafts) -> dict[int, tuple[int, ...]]:
    return {block.sequence_id: tuple(block.token_ids) for block in drafts.blocks}


def ahead_of(session: Session) -> proposer_pb2.Lookahead | None:
    work = session.lookahead()
    for _ in work.prepare():
        pass
    message = work.message()
    return None if message is None else message.lookahead


def test_one_forward_serves_the_sequences_of_a_step() -> None:
    drafting = Drafting()
    session = session_of(drafting)
    drafts = session.answer(
        step(3, opening(11, TEXT, k=3), opening(12, TEXT[1:], k=2), opening(13, [1]))
    ).drafts
    assert drafts.step_id == 3
    assert ids_of(drafts) == {11: said(DRAFT, TEXT, 3), 12: said(DRAFT, TEXT[1:], 2)}
    (block, _) = drafts.blocks
    assert (block.epoch, block.base_length) == (1, len(TEXT))
    assert block.q_form == types_pb2.Q_FORM_ONE_HOT
    assert block.draft_ns > 0
    assert drafting.read() == [9, 2, 1]


@pytest.mark.parametrize("seed", [5, -5])
def test_the_requests_sampling_reaches_the_method(seed: int) -> None:
    noisy = said(DRAFT, TEXT, 8, Sampling(temperature=0.75, seed=seed))
    greedy = said(DRAFT, TEXT, 8)
    assert noisy != greedy
    for coupled, wanted in ((True, noisy), (False, greedy)):
        session = session_of(Drafting(), coupled=coupled)
        update = sampled(opening(1, TEXT, k=8), 0.75, seed)
        assert ids_of(session.answer(step(1, update)).drafts) == {1: wanted}


def test_look_ahead_is_what_the_next_step_is_answered_with() -> None:
    drafting = Drafting()
    session = session_of(drafting)
    (block,) = session.answer(step(1, opening(1, TEXT, k=3))).drafts.blocks
    lookahead = ahead_of(session)
    assert lookahead is not None
    (outcome,) = lookahead.blocks
    assert lookahead.step_id == 1
    assert outcome.base_length == len(TEXT)
    assert list(outcome.outcome_token_ids[:3]) == list(block.token_ids)
    assert outcome.block.base_length == len(TEXT) + 4
    drafting.read()
    answer = session.answer(step(2, commit(1, len(TEXT), outcome.outcome_token_ids, k=3))).drafts
    assert list(answer.blocks[0].token_ids) == list(outcome.block.token_ids)
    assert drafting.read() == []


def test_a_resync_begins_anew_and_others_go_on() -> None:
    drafting = Drafting()
    session = session_of(drafting)
    session.answer(step(1, opening(1, TEXT, k=2), opening(2, TEXT, k=2)))
    drafts = session.answer(step(2, commit(1, 99, [1], k=2), commit(2, 5, [0], k=2))).drafts
    assert [fault.sequence_id for fault in drafts.faults] == [1]
    assert ids_of(drafts) == {2: said(DRAFT, [*TEXT, 0], 2)}
    again = [3, 3, 0]
    drafts = session.answer(step(3, opening(1, again, epoch=2, k=2))).drafts
    assert ids_of(drafts) == {1: said(DRAFT, again, 2)}
    session.close()
    assert drafting.proposer._blocks.num_free == drafting.engine.cache.num_blocks


def test_a_sequence_may_be_closed_where_it_wanted_a_draft() -> None:
    session = session_of(Drafting())
    drafts = session.answer(
        step(1, opening(1, TEXT, k=2), opening(2, TEXT, k=2), closes=[(1, True)])
    ).drafts
    assert ids_of(drafts) == {2: said(DRAFT, TEXT, 2)}


def test_drafts_end_at_the_agreed_context() -> None:
    session = session_of(Drafting(), context_limit=len(TEXT) + 2)
    drafts = session.answer(step(1, opening(1, TEXT, k=8), opening(2, TEXT[1:], k=8))).drafts
    assert {number: len(ids) for number, ids in ids_of(drafts).items()} == {1: 2, 2: 3}
    assert ahead_of(session) is None


def test_a_prompt_that_is_still_read_has_no_draft_yet() -> None:
    drafting = Drafting(budgets=Budgets(answer=8, piece=8))
    session = session_of(drafting)
    text = TEXT * 4
    drafts = session.answer(step(1, opening(1, text, k=2), opening(2, TEXT, k=2))).drafts
    assert list(ids_of(drafts)) == [2]
    assert not drafts.faults
    for _ in drafting.catch_up():
        pass
    drafts = session.answer(step(2, commit(1, len(text), [0], k=2))).drafts
    assert ids_of(drafts) == {1: said(DRAFT, [*text, 0], 2)}


def test_a_forward_that_fails_costs_drafts_and_not_the_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafting = Drafting()
    drafting.engine.fail_at = 1
    session = session_of(drafting)
    with caplog.at_level(logging.ERROR):
        drafts = session.answer(step(1, opening(1, TEXT, k=3), opening(2, TEXT, k=3))).drafts
    assert {fault.sequence_id for fault in drafts.faults} == {1, 2}
    assert session.faults["method_failed"] == 2
    drafting.engine.fail_at = None
    drafts = session.answer(step(2, opening(1, TEXT, epoch=2, k=3))).drafts
    assert ids_of(drafts) == {1: said(DRAFT, TEXT, 3)}
