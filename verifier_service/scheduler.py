"""Which sequences a step runs, with how many tokens each, and what its verdicts mean.

Knows sequences, blocks and budgets; does not know tensors, threads or transports. A step is
`admit`, `views` (drafts are asked for), `plan`, the engine's run, `apply`.
"""

from __future__ import annotations

import bisect
import itertools
import time
from dataclasses import dataclass

from outrider.acceptance import Round
from verifier_service.controller import Candidate, Controller, Decision
from verifier_service.core import QueueFullError
from verifier_service.engines.base import CacheShape, Chunk, Verdict
from verifier_service.kv_cache import BlockPool
from verifier_service.messages import (
    DraftBlock,
    Output,
    OutputSink,
    QForm,
    Request,
    SequenceView,
)
from verifier_service.sequences import Sequence

# Prefill gets at least this many tokens of a step that has any to do, however many are decoding.
_MIN_PREFILL = 16
PREFILL = Decision(None, 0, "prefill")


@dataclass(frozen=True, slots=True)
class Planned:
    """One sequence's part of a step and the decision behind it."""

    sequence: Sequence
    chunk: Chunk
    decision: Decision
    offered: tuple[DraftBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Nanoseconds that the step waited for drafts and that its forward and sampling took."""

    draft_wait_ns: int
    verify_ns: int


class Scheduler:
    """Waiting and running sequences of one engine. Not thread-safe: the core's thread owns it."""

    def __init__(
        self,
        cache: CacheShape,
        controller: Controller,
        *,
        num_speculative_tokens: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_waiting: int,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {max_num_batched_tokens}: must be at least "
                f"max_num_seqs ({max_num_seqs}), one token for each running sequence"
            )
        self._block_size = cache.block_size
        self._pool = BlockPool(cache.num_blocks)
        self._controller = controller
        self._ceiling = num_speculative_tokens
        self._max_running = max_num_seqs
        self._budget = max_num_batched_tokens
        self._max_waiting = max_waiting
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._by_request: dict[str, Sequence] = {}
        self._closed: list[tuple[int, bool]] = []
        self._asked: dict[int, int] = {}
        self._numbers = itertools.count(1)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, request: Request, sink: OutputSink) -> None:
        """Queue a request. Raises QueueFullError, and ValueError for an id that is in use."""
        if len(self._waiting) >= self._max_waiting:
            raise QueueFullError(f"{len(self._waiting)} requests are waiting: the queue is full")
        if request.request_id in self._by_request:
            raise ValueError(f"request_id {request.request_id!r} is already running")
        number = next(self._numbers)
        own = request.num_speculative_tokens
        sequence = Sequence(
            sequence_id=number,
            request=request,
            sink=sink,
            draft_limit=self._ceiling if own is None else min(own, self._ceiling),
            arrival=number,
            ids=list(request.prompt_ids),
        )
        self._by_request[request.request_id] = sequence
        bisect.insort(self._waiting, sequence, key=_rank)

    def abort(self, request_id: str) -> None:
        """Free what a request holds; unknown ids are ignored."""
        sequence = self._by_request.get(request_id)
        if sequence is not None:
            self._end(sequence, finished=False)

    def end_all(self) -> list[OutputSink]:
        """Free everything; the sinks of what was not finished."""
        sequences = list(self._by_request.values())
        for sequence in sequences:
            self._end(sequence, finished=False)
        return [sequence.sink for sequence in sequences]

    def admit(self) -> None:
        """Start waiting sequences while there is room for all they are known to need."""
        while self._waiting and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            # Room for one more token of each running sequence stays, lest they be preempted.
            needed = self._blocks_for(len(sequence.ids) + 1)
            if self._pool.num_free < needed + (len(self._running) if self._running else 0):
                return
            del self._waiting[0]
            self._pool.extend(sequence.blocks, needed)
            self._running.append(sequence)
            if sequence.queue_ns < 0:
                sequence.queue_ns = time.perf_counter_ns() - sequence.queued_at

    def views(self) -> tuple[list[SequenceView], list[tuple[int, bool]]]:
        """What proposers are told before this step, and the sequences that have ended.

        Empty while nothing is wanted of them: what was committed meanwhile travels with the next
        view.
        """
        closed, self._closed = self._closed, []
        self._asked = {}
        drafting = [s for s in self._running if s.draft_limit > 0]
        for sequence in drafting:
            limit = sequence.most_drafts() if sequence.decoding else 0
            self._asked[sequence.sequence_id] = self._controller.wanted(len(self._running), limit)
        new = any(not sequence.announced for sequence in drafting)
        if not new and not any(self._asked.values()):
            return [], closed
        return [s.view(self._asked[s.sequence_id]) for s in drafting], closed

    def plan(self, blocks: dict[int, list[DraftBlock]]) -> list[Planned]:
        """The step's chunks: a round of each decoding sequence, then prefill within the budget."""
        decoding = [s for s in self._running if s.decoding]
        prefilling = [s for s in self._running if not s.decoding]
        backlog = sum(len(s.ids) - s.computed for s in prefilling)
        share = min(backlog, max(self._budget - len(decoding), _MIN_PREFILL))
        offers = {s.sequence_id: _usable(s, blocks.get(s.sequence_id, [])) for s in decoding}
        decisions = self._controller.plan(
            [self._candidate(s, offers[s.sequence_id]) for s in decoding],
            other_query_tokens=share,
            total_context=sum(len(s.ids) for s in decoding),
            draft_budget=max(self._budget - len(decoding) - share, 0),
        )
        planned: list[Planned] = []
        for sequence, decision in zip(decoding, decisions, strict=True):
            if not sequence.blocks:
                continue
            part = self._round(sequence, decision)
            if part is not None:
                offered = tuple(offers[sequence.sequence_id])
                planned.append(Planned(sequence, part[0], part[1], offered))
        # A preemption may have ended a sequence that was planned before it.
        planned = [part for part in planned if part.sequence.blocks]
        for sequence in prefilling:
            if share <= 0 or not sequence.blocks:
                continue
            count = min(len(sequence.ids) - sequence.computed, share)
            share -= count
            planned.append(Planned(sequence, self._prefill(sequence, count), PREFILL))
        return planned

    def apply(
        self, planned: list[Planned], verdicts: list[Verdict | None], times: StepTimes
    ) -> list[tuple[OutputSink, Output]]:
        """Commit a step's verdicts; what each request is told."""
        outputs: list[tuple[OutputSink, Output]] = []
        for part, verdict in zip(planned, verdicts, strict=True):
            sequence = part.sequence
            if not sequence.blocks:
                continue
            if verdict is None:
                sequence.computed += len(part.chunk.ids)
                continue
            outputs.append((sequence.sink, self._commit(part, verdict, times)))
        return outputs

    def _commit(self, part: Planned, verdict: Verdict, times: StepTimes) -> Output:
        sequence, decision = part.sequence, part.decision
        self._learn(part, verdict)
        base = sequence.num_output
        tokens, reason, stop = sequence.cut(verdict.tokens)
        sequence.ids.extend(tokens)
        sequence.computed = len(sequence.ids) - 1
        sequence.proposer = decision.block.proposer if decision.block and decision.drafted else ""
        sequence.drafted = decision.drafted
        sequence.accepted = min(verdict.accepted, len(tokens))
        round_ = Round(
            base=base,
            offered=len(decision.block.token_ids) if decision.block else 0,
            drafted=decision.drafted,
            accepted=sequence.accepted,
            emitted=len(tokens),
            proposer=sequence.proposer,
            off_reason=decision.off_reason,
            draft_wait_ns=times.draft_wait_ns,
            verify_ns=times.verify_ns,
            lookahead_hit=bool(decision.block and decision.block.lookahead_hit),
        )
        if reason is not None:
            self._end(sequence, finished=True)
        return Output(
            token_ids=tuple(tokens),
            round=round_,
            finish_reason=reason,
            stop_token_id=stop,
            queue_ns=sequence.queue_ns if base == 0 else 0,
        )

    def _learn(self, part: Planned, verdict: Verdict) -> None:
        """Tell the controller how the drafts did, the verified one's and the others'."""
        sequence, decision = part.sequence, part.decision
        verified = decision.block if decision.drafted else None
        if verified is not None:
            self._controller.observe_round(
                sequence.sequence_id,
                verified,
                greedy=sequence.greedy,
                drafted=decision.drafted,
                accepted=verdict.accepted,
            )
        for block in part.offered:
            if block is verified or (block.q_form is QForm.SPARSE and not sequence.greedy):
                continue
            matched = 0
            compared = min(len(block.token_ids), len(verdict.tokens))
            while matched < compared and block.token_ids[matched] == verdict.tokens[matched]:
                matched += 1
            self._controller.observe_shadow(
                sequence.sequence_id,
                block,
                greedy=sequence.greedy,
                compared=min(matched + 1, compared),
                matched=matched,
            )

    def _candidate(self, sequence: Sequence, offers: list[DraftBlock]) -> Candidate:
        return Candidate(
            sequence_id=sequence.sequence_id,
            blocks=offers,
            limit=sequence.most_drafts(),
            context_length=len(sequence.ids),
            ask=self._asked.get(sequence.sequence_id, 0),
            greedy=sequence.greedy,
            opted_out=sequence.draft_limit == 0,
        )

    def _round(self, sequence: Sequence, decision: Decision) -> tuple[Chunk, Decision] | None:
        """A verification; without drafts if blocks are short, None if it had to be preempted."""
        if not self._reserve(sequence, len(sequence.ids) + decision.drafted):
            decision = Decision(decision.block, 0, "the KV cache is full")
            while not self._reserve(sequence, len(sequence.ids)):
                victim = max(self._running, key=_rank)
                self._preempt(victim)
                if victim is sequence:
                    return None
        block = decision.block
        drafts = list(block.token_ids[: decision.drafted]) if block else []
        chunk = Chunk(
            ids=[sequence.ids[-1], *drafts],
            start=sequence.computed,
            blocks=sequence.blocks,
            drafts=len(drafts),
            samples=True,
            sampling=sequence.sampling,
            q_form=block.q_form if block else QForm.ONE_HOT,
            q=block.q[: decision.drafted] if block else (),
            sequence_ids=sequence.ids,
            prompt_length=sequence.prompt_length,
        )
        return chunk, decision

    def _prefill(self, sequence: Sequence, count: int) -> Chunk:
        start = sequence.computed
        return Chunk(
            ids=sequence.ids[start : start + count],
            start=start,
            blocks=sequence.blocks,
            drafts=0,
            samples=start + count == len(sequence.ids),
            sampling=sequence.sampling,
            sequence_ids=sequence.ids,
            prompt_length=sequence.prompt_length,
        )

    def _reserve(self, sequence: Sequence, length: int) -> bool:
        missing = self._blocks_for(length) - len(sequence.blocks)
        return missing <= 0 or self._pool.extend(sequence.blocks, missing)

    def _preempt(self, sequence: Sequence) -> None:
        """Give up a running sequence's cache; its ids stay and are computed again later."""
        self._running.remove(sequence)
        self._pool.release(sequence.blocks)
        sequence.computed = 0
        bisect.insort(self._waiting, sequence, key=_rank)

    def _end(self, sequence: Sequence, *, finished: bool) -> None:
        del self._by_request[sequence.request.request_id]
        (self._running if sequence.blocks else self._waiting).remove(sequence)
        self._pool.release(sequence.blocks)
        self._controller.close(sequence.sequence_id)
        if sequence.announced:
            self._closed.append((sequence.sequence_id, finished))

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._block_size)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


def _usable(sequence: Sequence, blocks: list[DraftBlock]) -> list[DraftBlock]:
    """Blocks that continue the sequence as it is; a late one never reaches a step."""
    length = len(sequence.ids)
    return [block for block in blocks if block.base_length == length and block.token_ids]
