"""Steps and answers without a transport."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.adversaries import BadProposer
from proposer_service.proposers.base import Proposer
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.session import Session
from tests.proposer_service.verifier import VOCABULARY, commit, opening, step


def session_of(proposer: Proposer | None = None, context_limit: int = 0, k: int = 8) -> Session:
    limits = SequenceLimits(8, context_limit, VOCABULARY, "v")
    return Session(proposer or NgramProposer(2, 5), sequence_numbers(), limits, k, "verifier-1")


def answer(session: Session, *updates: proposer_pb2.SequenceUpdate) -> proposer_pb2.Drafts:
    return session.answer(step(1, *updates)).drafts


TEXT = [1, 2, 3, 4, 5, 6, 7, 1, 2]


def test_one_step_answers_all_sequences_at_once() -> None:
    session = session_of()
    drafts = session.answer(
        step(17, opening(1, TEXT, k=3), opening(2, [5, 6, 9, 5, 6], k=8), opening(3, [1], k=8))
    ).drafts
    assert drafts.step_id == 17
    assert drafts.elapsed_ns > 0
    blocks = {block.sequence_id: block for block in drafts.blocks}
    assert list(blocks) == [1, 2]
    assert list(blocks[1].token_ids) == [3, 4, 5]
    assert blocks[1].epoch == 1
    assert blocks[1].base_length == len(TEXT)
    assert blocks[1].match_length == 2
    assert blocks[1].q_form == types_pb2.Q_FORM_ONE_HOT
    assert list(blocks[2].token_ids) == [9, 5, 6]


def test_nothing_is_drafted_where_nothing_is_wanted_or_more_is_to_come() -> None:
    session = session_of()
    assert not answer(session, opening(1, TEXT)).blocks
    chunk = opening(2, TEXT[:5], more=True, prompt_length=len(TEXT), k=4)
    assert not answer(session, chunk).blocks
    rest = opening(2, TEXT[5:], offset=5, prompt_length=len(TEXT), k=4)
    (block,) = answer(session, rest).blocks
    assert list(block.token_ids) == [3, 4, 5, 6]


def test_a_block_continues_the_last_state_of_a_step() -> None:
    session = session_of()
    (block,) = answer(session, opening(1, TEXT, k=4), commit(1, len(TEXT), [3], k=2)).blocks
    assert block.base_length == len(TEXT) + 1
    assert list(block.token_ids) == [4, 5]


def test_an_update_without_a_change_asks_again() -> None:
    session = session_of()
    answer(session, opening(1, TEXT))
    again = proposer_pb2.SequenceUpdate(sequence_id=1, epoch=1, max_draft_tokens=2)
    (block,) = answer(session, again).blocks
    assert list(block.token_ids) == [3, 4]


def test_never_more_is_drafted_than_agreed_or_fits_the_context() -> None:
    session = session_of(k=3)
    (block,) = answer(session, opening(1, TEXT, k=100)).blocks
    assert len(block.token_ids) == 3
    session = session_of(context_limit=len(TEXT) + 2)
    (block,) = answer(session, opening(1, TEXT, k=8)).blocks
    assert len(block.token_ids) == 2
    assert not answer(session, commit(1, len(TEXT), [3, 4], k=8)).blocks


def test_one_contradiction_is_one_fault_and_the_others_get_their_drafts() -> None:
    session = session_of()
    answer(session, opening(1, TEXT), opening(2, TEXT))
    drafts = answer(session, commit(1, 3, [3], k=4), commit(2, len(TEXT), [3], k=4))
    (fault,) = drafts.faults
    assert (fault.sequence_id, fault.epoch) == (1, 1)
    assert f"base_length 3: {len(TEXT)} ids are known" in fault.reason
    assert [block.sequence_id for block in drafts.blocks] == [2]
    assert session.faults == {"wrong_base": 1}


def test_a_stale_update_leaves_the_draft_that_is_wanted() -> None:
    session = session_of()
    drafts = answer(session, opening(1, TEXT, epoch=2, k=2), commit(1, 4, [9], epoch=1, k=2))
    assert [fault.epoch for fault in drafts.faults] == [1]
    assert [list(block.token_ids) for block in drafts.blocks] == [[3, 4]]


def test_a_sequence_forgotten_within_a_step_gets_no_draft() -> None:
    session = session_of()
    drafts = answer(session, opening(1, TEXT, k=2), commit(1, 4, [9], k=2))
    assert not drafts.blocks
    assert len(drafts.faults) == 1


def test_the_last_commit_counts_before_the_close() -> None:
    told: list[tuple[int, bool]] = []

    class Closing(NgramProposer):
        def close(self, sequence_id: int, finished: bool) -> None:
            told.append((len(self._texts[sequence_id].ids), finished))
            super().close(sequence_id, finished)

    session = session_of(Closing())
    answer(session, opening(1, TEXT))
    drafts = session.answer(step(2, commit(1, len(TEXT), [3], k=2), closes=[(1, True)])).drafts
    assert not drafts.blocks
    assert not drafts.faults
    assert told == [(len(TEXT) + 1, True)]


def test_a_full_table_takes_an_open_in_the_step_of_a_close() -> None:
    session = session_of()
    answer(session, *(opening(number, TEXT) for number in range(8)))
    drafts = session.answer(step(2, opening(9, TEXT, k=1), closes=[(0, True)])).drafts
    assert not drafts.faults
    assert [block.sequence_id for block in drafts.blocks] == [9]
    assert answer(session, opening(10, TEXT, k=1)).faults


def test_each_kind_of_contradiction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    session = session_of()
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            answer(session, commit(number, 0, [1]))
        answer(session, opening(1, [VOCABULARY]))
    assert session.faults == {"unknown_sequence": 5, "id_out_of_range": 1}
    assert len(caplog.records) == 2


def test_a_method_that_fails_costs_the_sequence_only(caplog: pytest.LogCaptureFixture) -> None:
    def guess(text: Sequence[int], k: int) -> Sequence[int]:
        if text[0] == 13:
            raise RuntimeError("unlucky")
        return [1] * k

    session = session_of(BadProposer(guess))
    drafts = answer(session, opening(1, [13], k=2), opening(2, [14], k=2))
    assert [block.sequence_id for block in drafts.blocks] == [2]
    assert [fault.sequence_id for fault in drafts.faults] == [1]
    assert "unlucky" in caplog.text
    assert len(session) == 1


def test_closing_the_session_drops_its_sequences() -> None:
    proposer = NgramProposer()
    session = session_of(proposer)
    answer(session, opening(1, TEXT), opening(2, TEXT))
    session.close()
    assert len(session) == 0
    assert not proposer._texts
