"""Blocks for likely outcomes of the round in flight, made while the verifier runs.

Knows what was drafted in the last answer; does not know when there is time. Work comes in pieces
of one sequence, so that whoever drives it can stop the moment a step arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.proposers.base import MAX_OUTCOMES, Draft, Proposer
from proposer_service.sequences import OpenSequence


class DraftedSequence(NamedTuple):
    """One sequence of the last answer, what it got, and how much was wanted.

    The sequence stays as it is until the next step is answered.
    """

    sequence_id: int
    sequence: OpenSequence
    draft: Draft
    max_draft_tokens: int


class LookaheadRound:
    """Outcome blocks for the sequences of one step."""

    def __init__(
        self, proposer: Proposer, step_id: int, drafted: list[DraftedSequence], context_limit: int
    ) -> None:
        self._proposer = proposer
        self._message = proposer_pb2.Lookahead(step_id=step_id)
        self._drafted = drafted
        self._context_limit = context_limit

    def prepare(self) -> Iterator[None]:
        """Prepares one sequence's blocks for each item."""
        for sequence in self._drafted:
            self._prepare(sequence)
            yield

    def message(self) -> proposer_pb2.ProposeResponse | None:
        """What was prepared so far; None where that is nothing."""
        if not self._message.blocks:
            return None
        return proposer_pb2.ProposeResponse(lookahead=self._message)

    def _prepare(self, drafted: DraftedSequence) -> None:
        sequence = drafted.sequence
        outcomes = self._proposer.lookahead(
            sequence.number, drafted.draft, drafted.max_draft_tokens
        )
        for outcome in outcomes[:MAX_OUTCOMES]:
            base_length = sequence.length + len(outcome.ids)
            allowed = drafted.max_draft_tokens
            if self._context_limit:
                allowed = min(allowed, self._context_limit - base_length)
            if allowed < 1 or not outcome.draft.ids:
                continue
            added = self._message.blocks.add()
            added.base_length = sequence.length
            added.outcome_token_ids.extend(outcome.ids)
            block = added.block
            block.sequence_id = drafted.sequence_id
            block.epoch = sequence.epoch
            block.base_length = base_length
            block.token_ids.extend(outcome.draft.ids[:allowed])
            block.q_form = types_pb2.Q_FORM_ONE_HOT
            block.match_length = outcome.draft.match_length
            block.confidences.extend(outcome.draft.confidences[:allowed])
