"""Blocks for likely outcomes of the round in flight, made while the verifier runs.

Knows what was drafted in the last answer; does not know when there is time. Work comes in pieces
of one sequence, so that whoever drives it can stop the moment a step arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.proposers.base import MAX_OUTCOMES, Draft, Proposer


@dataclass(frozen=True, slots=True)
class DraftedSequence:
    """One sequence of the last answer: where it stood, what it got, how much was wanted."""

    sequence_id: int
    epoch: int
    number: int
    base_length: int
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

    def _prepare(self, sequence: DraftedSequence) -> None:
        outcomes = self._proposer.lookahead(
            sequence.number, sequence.draft, sequence.max_draft_tokens
        )
        for outcome in outcomes[:MAX_OUTCOMES]:
            base_length = sequence.base_length + len(outcome.ids)
            allowed = sequence.max_draft_tokens
            if self._context_limit:
                allowed = min(allowed, self._context_limit - base_length)
            if allowed < 1 or not outcome.draft.ids:
                continue
            self._message.blocks.add(
                base_length=sequence.base_length,
                outcome_token_ids=outcome.ids,
                block=proposer_pb2.DraftBlock(
                    sequence_id=sequence.sequence_id,
                    epoch=sequence.epoch,
                    base_length=base_length,
                    token_ids=outcome.draft.ids[:allowed],
                    q_form=types_pb2.Q_FORM_ONE_HOT,
                    match_length=outcome.draft.match_length,
                    confidences=outcome.draft.confidences[:allowed],
                ),
            )
