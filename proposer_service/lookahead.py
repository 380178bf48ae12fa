"""Blocks for likely outcomes of the round in flight, made while the verifier runs.

Knows what was drafted in the last answer; does not know when there is time. Work comes in small
pieces, so that whoever drives it can stop the moment a step arrives; what a sequence got in one
round decides its place in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.proposers.base import (
    MAX_OUTCOMES,
    Ahead,
    Complete,
    Draft,
    Outcome,
    Pause,
    Proposer,
)
from proposer_service.proposers.batch import BatchProposer, Drafted
from proposer_service.sequences import OpenSequence

# Enough for a message of its own: the verifier reads it while others are made.
FULL_MESSAGE = 64
# Outcomes of one sequence before the next one has its turn. They come likeliest first, and the two
# likeliest are most of what comes true.
_TURN = 2
# Of a sequence whose likely outcomes were all taken.
_ALL = 1 << 30


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

    __slots__ = ("asked", "base_length", "drafts", "outcomes")

    def __init__(self, asked: DraftedSequence, outcomes: Iterator[Ahead]) -> None:
        self.asked = asked
        self.base_length = asked.sequence.length
        self.outcomes = outcomes
        self.drafts: dict[tuple[int, ...], Draft] = {}


class LookaheadRound:
    """Outcome blocks for the sequences of one step.

    `turns` tells, by sequence, how far the round came with it; `before` is that of the last round:
    whoever got least then comes first now, so that no sequence goes without for ever.
    """

    def __init__(
        self,
        proposer: Proposer,
        step_id: int,
        drafted: list[DraftedSequence],
        context_limit: int,
        before: Mapping[int, int],
    ) -> None:
        self.turns: dict[int, int] = {}
        self._proposer = proposer
        self._step_id = step_id
        self._message = proposer_pb2.Lookahead(step_id=step_id)
        self._entries = 0
        # Whether what was prepared is worth a message.
        self.full = False
        self._drafted = sorted(drafted, key=lambda asked: before.get(asked.sequence_id, 0))
        self._context_limit = context_limit
        self._preparations: dict[int, _Preparation] = {}
        self._paused: list[_Preparation] = []

    def prepare(self) -> Iterator[None]:
        """One piece of work for each item: each sequence's first, then all by turns."""
        if isinstance(self._proposer, BatchProposer):
            yield from self._prepare_together(self._proposer)
            return
        begun: list[_Preparation] = []
        for asked in self._drafted:
            outcomes = self._proposer.lookahead(
                asked.sequence.number, asked.draft, asked.max_draft_tokens
            )
            preparation = _Preparation(asked, iter(outcomes))
            self._preparations[asked.sequence_id] = preparation
            if self._take(preparation, 1):
                begun.append(preparation)
            yield
        # That nothing will come for most sequences is worth more than any single block.
        self.full = self._entries > 0
        yield
        while begun or self._paused:
            if not begun:
                begun, self._paused = self._paused, []
            going_on = []
            for preparation in begun:
                if self._take(preparation, _TURN):
                    going_on.append(preparation)
                yield
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

    def draft_behind(
        self,
        sequence_id: int,
        sequence: OpenSequence,
        ids: tuple[int, ...],
        max_draft_tokens: int,
    ) -> Draft | None:
        """What was prepared for the round's end with exactly `ids`; None where that is nothing.

        Its block was sent, or is on its way: an answer that says something else would have the
        verifier verify one draft while the next look-ahead speaks of another.
        """
        preparation = self._preparations.get(sequence_id)
        if (
            preparation is None
            or preparation.asked.sequence is not sequence
            or preparation.asked.max_draft_tokens != max_draft_tokens
            or preparation.base_length + len(ids) != sequence.length
        ):
            return None
        return preparation.drafts.get(ids)

    def _prepare_together(self, proposer: BatchProposer) -> Iterator[None]:
        by_number = {asked.sequence.number: asked for asked in self._drafted}
        drafted = [
            Drafted(number, asked.draft, asked.max_draft_tokens)
            for number, asked in by_number.items()
        ]
        for found in proposer.prepare(drafted):
            for number, outcome in found:
                self._add_outcome(by_number[number], outcome)
            self._entries += len(found)
            # What one piece brings comes at once, and more only another forward later.
            self.full = self._entries > 0
            yield

    def _take(self, preparation: _Preparation, most: int) -> bool:
        """Add the next `most` items; False where there are no more, or no likely ones."""
        asked, drafts, turns = preparation.asked, preparation.drafts, self.turns
        turns[asked.sequence_id] = turns.get(asked.sequence_id, 0) + 1
        for _ in range(most):
            item = next(preparation.outcomes, None)
            if isinstance(item, Outcome) and len(drafts) < MAX_OUTCOMES:
                drafts[item.ids] = item.draft
                self._add_outcome(asked, item)
            elif isinstance(item, Complete):
                self._add_complete(asked, item)
            else:
                turns[asked.sequence_id] = _ALL
                if item is Pause.UNLIKELY:
                    self._paused.append(preparation)
                return False
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
