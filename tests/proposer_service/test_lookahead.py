"""What is prepared for the round in flight."""

from __future__ import annotations

from collections.abc import Iterator

from speculation.v1 import proposer_pb2

from proposer_service.proposers.base import MAX_OUTCOMES, Ahead, Draft, Outcome, Pause
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
    outcomes = {tuple(o.outcome_token_ids): o for o in message.lookahead.blocks}
    assert set(outcomes) == {(3, 4, 5, 6), (3,), (3, 4), (3, 4, 5)}
    outcome = outcomes[3, 4, 5, 6]
    assert outcome.base_length == len(TEXT)
    assert [(c.sequence_id, c.epoch, c.base_length) for c in message.lookahead.complete] == [
        (1, 1, len(TEXT)),
        (2, 1, 1),
    ]
    assert list(message.lookahead.complete[0].accepted) == [0, 1, 2, 3]
    assert list(message.lookahead.complete[0].token_ids) == [3, 4, 5, 6]
    assert (outcome.block.sequence_id, outcome.block.epoch) == (1, 1)
    assert outcome.block.base_length == len(TEXT) + 4
    (block,) = session.answer(step(5, commit(1, len(TEXT), [3, 4, 5, 6], k=3))).drafts.blocks
    assert block.token_ids == outcome.block.token_ids == [7, 8, 9]
    assert block.match_length == outcome.block.match_length


def test_a_sequence_without_draft_or_outcomes_is_complete() -> None:
    session = session_of(NgramProposer(2, 5))
    session.answer(step(4, opening(1, [1, 2, 3], k=3)))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    assert prepared.full
    message = prepared.message()
    assert message is not None
    assert not message.lookahead.blocks
    (complete,) = message.lookahead.complete
    assert (complete.sequence_id, complete.base_length) == (1, 3)
    assert not complete.token_ids


def test_there_is_no_message_where_nothing_was_asked() -> None:
    session = session_of(NgramProposer(2, 5))
    session.answer(step(4, opening(1, [1, 2, 3], k=0)))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    assert not prepared.full
    assert prepared.message() is None


def test_every_sequence_is_complete_before_any_block_is_made() -> None:
    session = session_of(NgramProposer(2, 5))
    session.answer(step(4, *(opening(number, TEXT, k=3) for number in range(5))))
    prepared = session.lookahead()
    pieces = prepared.prepare()
    while not prepared.full:
        next(pieces)
    message = prepared.message()
    assert message is not None
    assert [c.sequence_id for c in message.lookahead.complete] == [0, 1, 2, 3, 4]
    assert not message.lookahead.blocks
    for _ in pieces:
        pass
    after = prepared.message()
    assert after is not None
    assert after.lookahead.step_id == 4
    # What was in the first message is not said again.
    assert not after.lookahead.complete
    outcomes = [(o.block.sequence_id, tuple(o.outcome_token_ids)) for o in after.lookahead.blocks]
    ends = [(3, 4, 5, 6), (3,), (3, 4), (3, 4, 5)]
    turns = (ends[:2], ends[2:])
    assert outcomes == [(number, end) for turn in turns for number in range(5) for end in turn]


def test_sequences_take_turns() -> None:
    class Patient(NgramProposer):
        def lookahead(
            self, sequence_id: int, draft: Draft, max_draft_tokens: int
        ) -> Iterator[Ahead]:
            for token in range(10):
                yield Outcome((token,), Draft((1,)))

    session = session_of(Patient(2, 5))
    session.answer(step(4, *(opening(number, TEXT, k=3) for number in range(2))))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    message = prepared.message()
    assert message is not None
    turns = [0, 1, *[0, 0, 1, 1] * 4, 0, 1]
    assert [o.block.sequence_id for o in message.lookahead.blocks] == turns


def test_blocks_fit_the_context_and_outcomes_are_bounded() -> None:
    class Eager(NgramProposer):
        def lookahead(
            self, sequence_id: int, draft: Draft, max_draft_tokens: int
        ) -> Iterator[Ahead]:
            for token in range(100):
                yield Outcome((token,), Draft((1,) * max_draft_tokens))

    session = session_of(Eager(2, 5), context_limit=len(TEXT) + 3)
    session.answer(step(4, opening(1, TEXT, k=3)))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    message = prepared.message()
    assert message is not None
    assert len(message.lookahead.blocks) == MAX_OUTCOMES
    assert {len(outcome.block.token_ids) for outcome in message.lookahead.blocks} == {2}
    assert not message.lookahead.complete


def sequences_of(message: proposer_pb2.ProposeResponse | None) -> list[int]:
    assert message is not None
    return [outcome.block.sequence_id for outcome in message.lookahead.blocks]


def test_unlikely_outcomes_wait_for_the_likely_ones_of_all_sequences() -> None:
    class Hesitant(NgramProposer):
        def lookahead(
            self, sequence_id: int, draft: Draft, max_draft_tokens: int
        ) -> Iterator[Ahead]:
            yield Outcome((1,), Draft((1,)))
            yield Pause.UNLIKELY
            yield Outcome((2,), Draft((1,)))

    session = session_of(Hesitant(2, 5))
    session.answer(step(4, *(opening(number, TEXT, k=3) for number in range(3))))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    message = prepared.message()
    assert sequences_of(message) == [0, 1, 2, 0, 1, 2]
    assert message is not None
    tokens = [list(outcome.outcome_token_ids) for outcome in message.lookahead.blocks]
    assert tokens == [[1]] * 3 + [[2]] * 3


def test_who_was_cut_off_comes_first_in_the_next_round() -> None:
    session = session_of(NgramProposer(2, 5))
    session.answer(step(4, *(opening(number, TEXT, k=3) for number in range(4))))
    prepared = session.lookahead()
    pieces = prepared.prepare()
    while not prepared.full:
        next(pieces)
    prepared.message()
    # Two sequences have their turn, then a step arrives.
    next(pieces)
    next(pieces)
    assert sequences_of(prepared.message()) == [0, 0, 1, 1]
    session.answer(step(5, *(commit(number, len(TEXT), [3], k=3) for number in range(4))))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    message = prepared.message()
    assert message is not None
    assert [c.sequence_id for c in message.lookahead.complete] == [2, 3, 0, 1]
    # All are served now: the order is the step's again.
    session.answer(step(6, *(commit(number, len(TEXT) + 1, [4], k=3) for number in range(4))))
    prepared = session.lookahead()
    for _ in prepared.prepare():
        pass
    message = prepared.message()
    assert message is not None
    assert [c.sequence_id for c in message.lookahead.complete] == [0, 1, 2, 3]


class Undecided(NgramProposer):
    """Its look-ahead promises other drafts than it proposes."""

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Iterator[Ahead]:
        yield Outcome((3,), Draft((7, 7, 7)))


def undecided(*changes: proposer_pb2.SequenceUpdate) -> list[list[int]]:
    """Drafts behind the changes, of a sequence that has look-ahead for one token, 3."""
    session = session_of(Undecided(2, 5))
    session.answer(step(4, opening(1, TEXT, k=3)))
    for _ in session.lookahead().prepare():
        pass
    return [list(block.token_ids) for block in session.answer(step(5, *changes)).drafts.blocks]


def test_the_answer_is_what_look_ahead_has_promised() -> None:
    length = len(TEXT)
    assert undecided(commit(1, length, [3], k=3)) == [[7, 7, 7]]
    # Other ids, another number of drafts, more than one commit, another text: not promised.
    assert undecided(commit(1, length, [3, 4], k=3)) == [[5, 6, 7]]
    assert undecided(commit(1, length, [3], k=2)) == [[4, 5]]
    assert undecided(commit(1, length, [2]), commit(1, length + 1, [3], k=3)) == [[4, 5, 6]]
    assert undecided(opening(1, [*TEXT, 3], epoch=2, k=3)) == [[4, 5, 6]]
