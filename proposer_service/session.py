"""One verifier's conversation after the handshake: a step in, an answer out; knows no transport."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from speculation.v1 import proposer_pb2, types_pb2

from proposer_service.lookahead import DraftedSequence, LookaheadRound
from proposer_service.proposers.base import Draft, Proposer
from proposer_service.proposers.batch import BatchProposer, Wanted
from proposer_service.sequences import (
    OpenSequence,
    SequenceError,
    SequenceLimits,
    SequenceTable,
)

if TYPE_CHECKING:
    from proposer_service.tracing import SequenceTracer

logger = logging.getLogger(__name__)

# A sequence that wants drafts, how many at most, and what the step committed to it.
_Want = tuple[OpenSequence, int, tuple[int, ...]]


class Session:
    """Answers the steps of one stream.

    `tracer` begins the traces of sequences whose verifier traces them.
    `faults` counts the contradictions found, by kind. `max_draft_tokens` is what was agreed with
    this verifier in the handshake.
    """

    def __init__(
        self,
        proposer: Proposer,
        numbers: Iterator[int],
        limits: SequenceLimits,
        max_draft_tokens: int,
        verifier: str,
        tracer: SequenceTracer | None = None,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._proposer = proposer
        self._batching = proposer if isinstance(proposer, BatchProposer) else None
        trace = None if tracer is None else partial(tracer.begin, verifier=verifier)
        self._table = SequenceTable(proposer, numbers, limits, trace)
        self._context_limit = limits.context_limit
        self._max_draft_tokens = max_draft_tokens
        self._verifier = verifier
        self._drafted: list[DraftedSequence] = []
        self._step_id = 0
        # What was prepared for the end of the round in flight.
        self._ahead: LookaheadRound | None = None

    def __len__(self) -> int:
        """The number of open sequences."""
        return len(self._table)

    def answer(self, step: proposer_pb2.Step) -> proposer_pb2.ProposeResponse:
        """Make the step true, then draft for the sequences that want it."""
        pieces = self.answering(step)
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                response: proposer_pb2.ProposeResponse = done.value
                return response

    def answering(
        self, step: proposer_pb2.Step
    ) -> Generator[None, None, proposer_pb2.ProposeResponse]:
        """`answer` in pieces, as the method has them: one alone where each draft is its own."""
        begin = time.perf_counter_ns()
        response = proposer_pb2.ProposeResponse()
        drafts = response.drafts
        drafts.step_id = self._step_id = step.step_id
        self._drafted = []
        wanted = self._make_true(step, drafts)
        if self._batching is not None:
            yield from self._draft_together(self._batching, drafts, wanted)
        else:
            for sequence_id, (sequence, max_draft_tokens, ids) in wanted.items():
                draft = self._draft if sequence.trace is None else self._draft_traced
                draft(drafts, sequence_id, sequence, max_draft_tokens, ids)
        drafts.elapsed_ns = time.perf_counter_ns() - begin
        return response

    def lookahead(self) -> LookaheadRound:
        """Work that may be done until the next step arrives."""
        before = {} if self._ahead is None else self._ahead.turns
        self._ahead = LookaheadRound(
            self._proposer, self._step_id, self._drafted, self._context_limit, before
        )
        return self._ahead

    def close(self) -> None:
        """The stream is over: its sequences are dropped."""
        self._table.forget_all()

    def _make_true(self, step: proposer_pb2.Step, drafts: proposer_pb2.Drafts) -> dict[int, _Want]:
        """Apply the step's changes; which sequences want drafts behind them."""
        closes = step.closes
        closing = sum(self._table.get(close.sequence_id) is not None for close in closes)
        wanted: dict[int, _Want] = {}
        for update in step.updates:
            sequence_id = update.sequence_id
            sequence = self._apply(update, closing, drafts)
            if sequence is not None and update.max_draft_tokens and not sequence.opening:
                ids = tuple(update.commit.token_ids)
                wanted[sequence_id] = (sequence, update.max_draft_tokens, ids)
            elif sequence is not None or self._table.get(sequence_id) is None:
                wanted.pop(sequence_id, None)
        for close in closes:
            self._table.close(close.sequence_id, close.finished)
            wanted.pop(close.sequence_id, None)
        return wanted

    def _apply(
        self, update: proposer_pb2.SequenceUpdate, closing: int, drafts: proposer_pb2.Drafts
    ) -> OpenSequence | None:
        try:
            return self._table.apply(update, closing)
        except SequenceError as error:
            self._fault(drafts, update.sequence_id, update.epoch, error.kind, str(error))
        except Exception:
            self._method_failed(drafts, update.sequence_id, update.epoch)
        return None

    def _draft(
        self,
        drafts: proposer_pb2.Drafts,
        sequence_id: int,
        sequence: OpenSequence,
        max_draft_tokens: int,
        committed: tuple[int, ...],
    ) -> None:
        begin = time.perf_counter_ns()
        allowed = self._allowed(sequence, max_draft_tokens)
        if allowed < 1:
            return
        try:
            draft = self._prepared(sequence_id, sequence, committed, allowed)
            if draft is None:
                draft = self._proposer.propose(sequence.number, allowed)
        except Exception:
            self._method_failed(drafts, sequence_id, sequence.epoch)
            return
        self._drafted.append(DraftedSequence(sequence_id, sequence, draft, allowed))
        if draft.ids:
            self._add_block(drafts, sequence_id, sequence, draft, begin)

    def _draft_together(
        self, proposer: BatchProposer, drafts: proposer_pb2.Drafts, wanted: Mapping[int, _Want]
    ) -> Iterator[None]:
        begin = time.perf_counter_ns()
        asked = [
            (sequence_id, sequence, allowed)
            for sequence_id, (sequence, most, _) in wanted.items()
            if (allowed := self._allowed(sequence, most)) >= 1
        ]
        if not asked:
            return
        try:
            found = yield from proposer.propose_many(
                [Wanted(sequence.number, allowed) for _, sequence, allowed in asked]
            )
        except Exception:
            # One forward served all of them: none is known to be well.
            for sequence_id, sequence, _ in asked:
                self._method_failed(drafts, sequence_id, sequence.epoch)
            return
        for (sequence_id, sequence, allowed), draft in zip(asked, found, strict=True):
            self._drafted.append(DraftedSequence(sequence_id, sequence, draft, allowed))
            if draft.ids:
                self._add_block(drafts, sequence_id, sequence, draft, begin)
            if sequence.trace is not None:
                sequence.trace.drafted(len(draft.ids), time.perf_counter_ns() - begin)

    def _allowed(self, sequence: OpenSequence, most: int) -> int:
        allowed = min(most, self._max_draft_tokens)
        if self._context_limit:
            allowed = min(allowed, self._context_limit - sequence.length)
        return allowed

    def _add_block(
        self,
        drafts: proposer_pb2.Drafts,
        sequence_id: int,
        sequence: OpenSequence,
        draft: Draft,
        begin: int,
    ) -> None:
        # Setting fields one by one takes half the time of naming them all in add().
        block = drafts.blocks.add()
        block.sequence_id = sequence_id
        block.epoch = sequence.epoch
        block.base_length = sequence.length
        block.token_ids.extend(draft.ids)
        block.q_form = types_pb2.Q_FORM_ONE_HOT
        if draft.q:
            _add_q(block, draft)
        block.match_length = draft.match_length
        if draft.confidences:
            block.confidences.extend(draft.confidences)
        block.draft_ns = time.perf_counter_ns() - begin

    def _draft_traced(
        self,
        drafts: proposer_pb2.Drafts,
        sequence_id: int,
        sequence: OpenSequence,
        max_draft_tokens: int,
        committed: tuple[int, ...],
    ) -> None:
        begin, before = time.perf_counter_ns(), len(drafts.blocks)
        self._draft(drafts, sequence_id, sequence, max_draft_tokens, committed)
        tokens = len(drafts.blocks[-1].token_ids) if len(drafts.blocks) > before else 0
        if sequence.trace is not None:
            sequence.trace.drafted(tokens, time.perf_counter_ns() - begin)

    def _prepared(
        self, sequence_id: int, sequence: OpenSequence, committed: tuple[int, ...], allowed: int
    ) -> Draft | None:
        """What look-ahead has prepared for what became true, if it has."""
        if self._ahead is None:
            return None
        return self._ahead.draft_behind(sequence_id, sequence, committed, allowed)

    def _method_failed(self, drafts: proposer_pb2.Drafts, sequence_id: int, epoch: int) -> None:
        """One text that a method cannot take must not end the other sequences' stream."""
        logger.exception("the method failed on sequence %d", sequence_id)
        self._table.forget(sequence_id)
        self._fault(drafts, sequence_id, epoch, "method_failed", "the method failed on this text")

    def _fault(
        self, drafts: proposer_pb2.Drafts, sequence_id: int, epoch: int, kind: str, reason: str
    ) -> None:
        if not self.faults[kind]:
            logger.warning(
                "verifier %s sequence %d epoch %d: %s (%s; further ones are only counted)",
                self._verifier,
                sequence_id,
                epoch,
                reason,
                kind,
            )
        self.faults[kind] += 1
        drafts.faults.add(sequence_id=sequence_id, epoch=epoch, reason=reason)


def _add_q(block: proposer_pb2.DraftBlock, draft: Draft) -> None:
    block.q_form = types_pb2.Q_FORM_SPARSE
    for row in draft.q:
        block.q.row_lengths.append(len(row.token_ids))
        block.q.token_ids.extend(row.token_ids)
        block.q.masses.extend(row.masses)
