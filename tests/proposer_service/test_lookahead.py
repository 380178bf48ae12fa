"""What is prepared for the round in flight."""

from __future__ import annotations

from collections.abc import Sequence

from proposer_service.proposers.base import MAX_OUTCOMES, Draft, Outcome
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.sequences import SequenceLimits, sequence_numbers
from proposer_service.session import Session
from tests.proposer_service.verifier import VOCABULARY, commit, opening, step

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]


def session_of(proposer: NgramProposer, context_limit: int = 0) -> Session:
    limits = SequenceLimits(8, context_limit, VOCABULARY)
    return Session(proposer, sequence_numbers(), limits, 8, "v")


def test_the_block_for_an_outcome_is_what_the_next_step_would_get() -> None:
    session = session_of(NgramProposer(2, 5))
    session.answer(step(4, opening(1, TEXT, k=3), opening(2, [7], k=3)))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    message = prepared.message()
    assert message is not None
    assert message.lookahead.step_id == 4
    (outcome,) = message.lookahead.blocks
    assert outcome.base_length == len(TEXT)
    assert list(outcome.outcome_token_ids) == [3, 4, 5, 6]
    assert (outcome.block.sequence_id, outcome.block.epoch) == (1, 1)
    assert outcome.block.base_length == len(TEXT) + 4
    (block,) = session.answer(step(5, commit(1, len(TEXT), [3, 4, 5, 6], k=3))).drafts.blocks
    assert block.token_ids == outcome.block.token_ids == [7, 8, 9]
    assert block.match_length == outcome.block.match_length


def test_there_is_no_message_where_nothing_was_drafted() -> None:
    session = session_of(NgramProposer(2, 5))
    session.answer(step(4, opening(1, [1, 2, 3], k=3)))
    prepared = session.lookahead()
    assert list(prepared.prepare()) == []
    assert prepared.message() is None


def test_work_comes_in_pieces_of_one_sequence() -> None:
    session = session_of(NgramProposer(2, 5))
    session.answer(step(4, *(opening(number, TEXT, k=3) for number in range(5))))
    prepared = session.lookahead()
    pieces = prepared.prepare()
    next(pieces)
    next(pieces)
    message = prepared.message()
    assert message is not None
    assert {o.block.sequence_id for o in message.lookahead.blocks} == {0, 1}


def test_blocks_fit_the_context_and_outcomes_are_bounded() -> None:
    class Eager(NgramProposer):
        def lookahead(
            self, sequence_id: int, draft: Draft, max_draft_tokens: int
        ) -> Sequence[Outcome]:
            return [Outcome((token,), Draft((1,) * max_draft_tokens)) for token in range(100)]

    session = session_of(Eager(2, 5), context_limit=len(TEXT) + 3)
    session.answer(step(4, opening(1, TEXT, k=3)))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    message = prepared.message()
    assert message is not None
    assert len(message.lookahead.blocks) == MAX_OUTCOMES
    assert {len(outcome.block.token_ids) for outcome in message.lookahead.blocks} == {2}
