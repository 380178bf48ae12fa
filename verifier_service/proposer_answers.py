"""Sorts what one proposer sends: current blocks are kept, everything else dropped and counted.

Knows the steps sent on one stream and nothing of connecting. The stale rule lives here: a block is
taken only where (sequence, epoch, base) is exactly what the last step asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from speculation.v1 import proposer_pb2

from verifier_service.draft_checks import cut_block
from verifier_service.messages import DraftBlock, SequenceView
from verifier_service.proposer_ahead import LookaheadReader
from verifier_service.proposer_ask import (
    COVERED,
    NOTHING,
    Ask,
    ForeseenAnswer,
    SentStep,
    is_worth_a_wait,
)
from verifier_service.proposer_blocks import BlockReader
from verifier_service.proposer_handshake import ProposerLimits
from verifier_service.proposer_mirror import Mirrors
from verifier_service.proposer_pace import Pace
from verifier_service.proposer_state import ProposerRecord

MAX_OUTSTANDING = 4
MAX_OUTSTANDING_SLOW = 1
# Messages beyond one answer for each step; look-ahead may come in pieces.
UNSOLICITED_PER_STEP = 64


def parse(data: bytes) -> proposer_pb2.ProposeResponse | None:
    """A proposer's message; None where the bytes are not one."""
    try:
        return proposer_pb2.ProposeResponse.FromString(data)
    except DecodeError:
        return None


class ProposerAnswers:
    """One stream after its welcome: steps out, blocks in. Not thread-safe: the pool locks.

    `name` is the proposer's name here; ids must be below `vocabulary_size`.
    """

    def __init__(
        self,
        *,
        limits: ProposerLimits,
        name: str,
        vocabulary_size: int,
        mirrors: Mirrors,
        pace: Pace,
        record: ProposerRecord,
    ) -> None:
        self._limits = limits
        self._mirrors = mirrors
        self._pace = pace
        self._record = record
        self._reader = BlockReader(limits, name, vocabulary_size, record)
        self._ahead = LookaheadReader(limits, mirrors, record)
        self._outstanding: dict[int, SentStep] = {}
        self._last: SentStep | None = None
        self._last_step_id = 0
        self._answered: set[int] = set()
        self._blocks: dict[int, DraftBlock] = {}
        self._collected = True
        self._unsolicited = 0
        self._behind = False

    @property
    def awaited(self) -> bool:
        """Whether the last step should be waited for."""
        last = self._last
        return (
            last is not None
            and last.awaited
            and not self._collected
            and not self._pace.slow
            and last.step_id in self._outstanding
        )

    @property
    def _most_outstanding(self) -> int:
        return MAX_OUTSTANDING_SLOW if self._pace.slow else MAX_OUTSTANDING

    @property
    def flooding(self) -> bool:
        """More messages came since the last step than any honest proposer sends."""
        return self._unsolicited > UNSOLICITED_PER_STEP + len(self._mirrors)

    @property
    def answered(self) -> bool:
        """Whether any step was answered on this stream."""
        return bool(self._answered)

    def oldest_sent_at(self) -> float | None:
        """When the longest unanswered step was sent; None where all are answered."""
        for step in self._outstanding.values():
            return step.sent_at
        return None

    def advance(
        self,
        views: Sequence[SequenceView],
        closed: Sequence[tuple[int, bool]],
        step_id: int,
        now: float,
    ) -> proposer_pb2.Step | None:
        """The step to send now; None where the proposer is behind or there is nothing to say."""
        for sequence_id, finished in closed:
            self._mirrors.close(sequence_id, finished)
        self._blocks.clear()
        self._collected = False
        self._last = None
        self._behind = len(self._outstanding) >= self._most_outstanding
        if self._behind:
            return None
        step, sent = self._mirrors.advance(views, step_id, now)
        if not step.updates and not step.closes:
            return None
        self._outstanding[step_id] = sent
        self._last = sent
        self._last_step_id = step_id
        self._unsolicited = 0
        for sequence_id, outcome in sent.ahead.items():
            block = self._reader.read_ahead(outcome, used=True)
            if block is not None:
                sent.hits[sequence_id] = cut_block(block, sent.asks[sequence_id].max_draft_tokens)
        self._record.draft_blocks += len(sent.hits)
        self._record.lookahead_hits += len(sent.hits)
        self._record.lookahead_none += len(sent.covered)
        self._record.lookahead_misses += len(sent.ahead) - len(sent.hits) - len(sent.covered)
        self._blocks.update(sent.hits)
        return step

    def collect(self, *, waited: bool = True) -> dict[int, DraftBlock]:
        """The blocks for the last step, once; what comes after this is late.

        It is not the proposer's fault where nobody `waited`.
        """
        if self._last is not None and not waited:
            self._last.let_go = True
        blocks = self._blocks
        self._blocks = {}
        self._collected = True
        return blocks

    def foreseen(self, views: Sequence[SequenceView]) -> ForeseenAnswer:
        """The answer to these views, as far as look-ahead has told it."""
        answer = ForeseenAnswer()
        if len(self._outstanding) >= self._most_outstanding:
            # Nothing would be sent.
            return answer
        mirrors, reader = self._mirrors, self._reader
        asked = 0
        for view in views:
            told = mirrors.foreseen(view)
            if told is NOTHING:
                continue
            asked += 1
            if told is COVERED:
                continue
            block = None
            if told.outcome is not None:
                block = reader.read_ahead(told.outcome, used=False)
            if block is not None:
                answer.blocks[view.sequence_id] = cut_block(block, told.wanted)
                continue
            answer.unknown.add(view.sequence_id)
            if told.rest is not None:
                answer.stopgaps[view.sequence_id] = cut_block(told.rest, told.wanted)
        if self._pace.slow or not is_worth_a_wait(len(answer.unknown), asked):
            answer.unknown.clear()
        return answer

    def behind(
        self, outcomes: Sequence[tuple[int, Sequence[int]]], known: set[int], unknown: set[int]
    ) -> None:
        """Add the sequences that would have drafts once these ids are committed to them, and those
        of which it is not known. Nobody is waited for while it is slow.
        """
        slow = self._pace.slow
        if self._behind:
            # What was not told is missing in front of these ids.
            unknown.update(sequence_id for sequence_id, _ in outcomes if not slow)
            return
        for sequence_id, ids in outcomes:
            offered = self._mirrors.offers_behind(sequence_id, ids)
            if offered:
                known.add(sequence_id)
            elif offered is None and not slow:
                unknown.add(sequence_id)

    def missed(self) -> None:
        """The last step was waited for until the deadline."""
        self._pace.missed()

    def receive(self, response: proposer_pb2.ProposeResponse | None, now: float) -> None:
        """Take one message of the proposer, whatever it is; never raises for its content."""
        kind = response.WhichOneof("message") if response is not None else None
        if response is None or kind is None:
            self._unsolicited += 1
            self._record.drop("unparsable", "bytes that are no message of this protocol")
        elif kind == "drafts":
            self._take_drafts(response.drafts, now)
        elif kind == "lookahead":
            self._unsolicited += 1
            lookahead = response.lookahead
            self._ahead.take(
                lookahead,
                late=lookahead.step_id < self._last_step_id,
                answered=lookahead.step_id in self._answered,
            )
        else:
            self._unsolicited += 1
            self._record.drop("unexpected_welcome", "a second welcome")

    def _take_drafts(self, drafts: proposer_pb2.Drafts, now: float) -> None:
        step_id = drafts.step_id
        step = self._outstanding.get(step_id)
        if step is None:
            self._unsolicited += 1
            if step_id > self._last_step_id:
                reason = "unknown_step"
            else:
                reason = "duplicate" if step_id in self._answered else "stale"
            self._record.drop(reason, f"an answer to step {step_id}", max(1, len(drafts.blocks)))
            return
        self._settle(step_id)
        if step.asks:
            self._record.waits.add(now - step.sent_at)
            self._pace.answered(now - step.sent_at)
        if len(drafts.blocks) > self._limits.max_sequences:
            self._record.drop(
                "too_many_blocks",
                f"{len(drafts.blocks)} blocks from a proposer of {self._limits.max_sequences} "
                "sequences",
                len(drafts.blocks),
            )
        else:
            late = step is not self._last or self._collected
            seen: set[int] = set()
            for block in drafts.blocks:
                self._take_block(block, step, late, seen)
        for fault in drafts.faults[: self._limits.max_sequences]:
            self._take_fault(fault)

    def _settle(self, step_id: int) -> None:
        # Answers come in order: an older step without one never gets it.
        for old in [old for old in self._outstanding if old <= step_id]:
            del self._outstanding[old]
        self._answered.add(step_id)
        if len(self._answered) > 4 * MAX_OUTSTANDING:
            self._answered.remove(min(self._answered))

    def _take_block(
        self, block: proposer_pb2.DraftBlock, step: SentStep, late: bool, seen: set[int]
    ) -> None:
        sequence_id = block.sequence_id
        ask = step.asks.get(sequence_id)
        if ask is None:
            known = self._mirrors.get(sequence_id) is not None
            reason = "unasked" if known else "unknown_sequence"
            self._record.drop(reason, f"a block for sequence {sequence_id}")
        elif block.epoch != ask.epoch or block.base_length != ask.base_length:
            self._record.drop(
                "stale",
                f"epoch {block.epoch}, base {block.base_length} where epoch {ask.epoch}, "
                f"base {ask.base_length} is current",
            )
        elif sequence_id in seen:
            self._record.drop("duplicate", f"a second block for sequence {sequence_id}")
        elif (checked := self._reader.read(block, ask.max_draft_tokens)) is not None:
            seen.add(sequence_id)
            self._remember(sequence_id, ask, checked)
            if not checked.token_ids or sequence_id in step.hits:
                return
            if late and (sequence_id in step.covered or not step.awaited):
                return  # It was not waited for.
            if late:
                self._record.drop("late", "the step went on without it")
                return
            self._blocks[sequence_id] = checked
            self._record.draft_blocks += 1

    def _remember(self, sequence_id: int, ask: Ask, block: DraftBlock) -> None:
        """Look-ahead names outcomes of the proposer's own block, whatever is verified."""
        mirror = self._mirrors.get(sequence_id)
        if mirror is not None and (mirror.epoch, mirror.sent) == (ask.epoch, ask.base_length):
            mirror.outlook.own = block

    def _take_fault(self, fault: proposer_pb2.SequenceFault) -> None:
        mirror = self._mirrors.get(fault.sequence_id)
        if mirror is None or mirror.epoch != fault.epoch:
            return  # Closed or opened again since: already cured.
        self._record.fault(f"sequence {fault.sequence_id}: {fault.reason[:200]!r}")
        self._blocks.pop(fault.sequence_id, None)
        self._mirrors.fault(fault.sequence_id)
