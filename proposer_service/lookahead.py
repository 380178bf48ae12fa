"""Blocks for likely outcomes of the round in flight, made while the verifier runs.

Knows what was drafted in the last answer; does not know when there is time. Work comes in pieces
of one outcome, so that whoever drives it can stop the moment a step arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.proposers.base import MAX_OUTCOMES, Complete, Draft, Outcome, Proposer
from proposer_service.sequences import OpenSequence

# Enough for a message of its own: the verifier reads it while others are made.
FULL_MESSAGE = 64
# Outcomes of one sequence before the next one has its turn.
_TURN = 4


class DraftedSequence(NamedTuple):
    """One sequence that was asked about in the last step, its draft (or none), how much was wanted.

    The sequence stays as it is until the next step is answered.
    """

    sequence_id: int
    sequence: OpenSequence
    draft: Draft
    max_draft_tokens: int


class _Preparation:
    """One sequence's outcomes, as far as they were taken."""

    __slots__ = ("asked", "count", "outcomes")

    def __init__(self, asked: DraftedSequence, outcomes: Iterator[Outcome | Complete]) -> None:
        self.asked = asked
        self.outcomes = outcomes
        self.count = 0


class LookaheadRound:
    """Outcome blocks for the sequences of one step."""

    def __init__(
        self, proposer: Proposer, step_id: int, drafted: list[DraftedSequence], context_limit: int
    ) -> None:
        self._proposer = proposer
        self._step_id = step_id
        self._message = proposer_pb2.Lookahead(step_id=step_id)
        self._entries = 0
        # Whether what was prepared is worth a message.
        self.full = False
        self._drafted = drafted
        self._context_limit = context_limit

    def prepare(self) -> Iterator[None]:
        """One piece of work for each item: each sequence's first, then all by turns."""
        begun = []
        for asked in self._drafted:
            outcomes = self._proposer.lookahead(
                asked.sequence.number, asked.draft, asked.max_draft_tokens
            )
            preparation = _Preparation(asked, iter(outcomes))
            if self._prepare_next(preparation):
                begun.append(preparation)
            yield
        # That nothing will come for most sequences is worth more than any single block.
        self.full = self._entries > 0
        yield
        while begun:
            going_on = []
            for preparation in begun:
                for _ in range(_TURN):
                    if not self._prepare_next(preparation):
                        break
                    yield
                else:
                    going_on.append(preparation)
            begun = going_on

    def message(self) -> proposer_pb2.ProposeResponse | None:
        """What was prepared since the last message; None where that is nothing."""
        message = self._message
        self._entries = 0
        self.full = False
        if not message.blocks and not message.complete:
            return None
        self._message = proposer_pb2.Lookahead(step_id=self._step_id)
        return proposer_pb2.ProposeResponse(lookahead=message)

    def _prepare_next(self, preparation: _Preparation) -> bool:
        """Add the next item; False where there is none."""
        item = next(preparation.outcomes, None)
        if item is None or preparation.count == MAX_OUTCOMES:
            return False
        if isinstance(item, Outcome):
            preparation.count += 1
            self._add_outcome(preparation.asked, item)
        else:
            self._add_complete(preparation.asked, item)
        self._entries += 1
        self.full = self.full or self._entries >= FULL_MESSAGE
        return True

    def _add_outcome(self, asked: DraftedSequence, outcome: Outcome) -> None:
        sequence, allowed = asked.sequence, asked.max_draft_tokens
        base_length = sequence.length + len(outcome.ids)
        if self._context_limit:
            allowed = min(allowed, self._context_limit - base_length)
        draft = outcome.draft
        if allowed < 1 or not draft.ids:
            return
        # Setting fields one by one takes half the time of naming them all in add().
        added = self._message.blocks.add()
        added.base_length = sequence.length
        added.outcome_token_ids.extend(outcome.ids)
        block = added.block
        block.sequence_id = asked.sequence_id
        block.epoch = sequence.epoch
        block.base_length = base_length
        block.token_ids.extend(draft.ids[:allowed])
        block.q_form = types_pb2.Q_FORM_ONE_HOT
        block.match_length = draft.match_length
        if draft.confidences:
            block.confidences.extend(draft.confidences[:allowed])

    def _add_complete(self, asked: DraftedSequence, complete: Complete) -> None:
        added = self._message.complete.add()
        added.sequence_id = asked.sequence_id
        added.epoch = asked.sequence.epoch
        added.base_length = asked.sequence.length
        if complete.ends:
            accepted, token_ids = zip(*complete.ends, strict=True)
            added.accepted.extend(accepted)
            added.token_ids.extend(token_ids)
