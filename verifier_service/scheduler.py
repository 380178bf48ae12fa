"""Which sequences a step runs, with how many tokens each, and what its verdicts mean.

Knows sequences, blocks and budgets; does not know tensors, threads or transports. A step is
`admit`, `views` (drafts are asked for), `plan`, the engine's run, `apply`.
"""

from __future__ import annotations

import math

from outrider.acceptance import Round
from verifier_service import constraints, offered
from verifier_service.block_tables import BlockTables
from verifier_service.constraints import ConstraintFailure
from verifier_service.controller import Candidate, Controller, Decision
from verifier_service.engines.base import CacheShape, Chunk, Verdict
from verifier_service.messages import (
    DraftBlock,
    FinishReason,
    Output,
    OutputSink,
    Request,
    SequenceView,
    TokenLogprob,
)
from verifier_service.prefill import MIN_PREFILL, Prefill
from verifier_service.queues import Queues
from verifier_service.sequences import Sequence
from verifier_service.step_plan import (
    PREFILL,
    Planned,
    StepRecorder,
    StepTimes,
    prefill_chunk,
    round_chunk,
    teach,
)
from verifier_service.step_times import StepTimesTotal

__all__ = ["PREFILL", "Planned", "Scheduler", "StepTimes"]


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
        prefix_caching: bool = True,
        prefill_stall_s: float = math.inf,
        recorder: StepRecorder | None = None,
        num_prediction_tokens: int = 0,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {max_num_batched_tokens}: must be at least "
                f"max_num_seqs ({max_num_seqs}), one token for each running sequence"
            )
        self._tables = BlockTables(cache, prefix_caching=prefix_caching)
        self._prefill = Prefill(self._tables, controller.costs, stall_seconds=prefill_stall_s)
        self._controller = controller
        self._recorder = recorder
        self._queues = Queues(
            self._tables,
            max_running=max_num_seqs,
            max_waiting=max_waiting,
            max_drafts=num_speculative_tokens,
            max_predicted=num_prediction_tokens,
        )
        self.step_times = StepTimesTotal()
        self._budget = max_num_batched_tokens
        self._asked: dict[int, int] = {}

    @property
    def num_running(self) -> int:
        return len(self._queues.running)

    @property
    def num_waiting(self) -> int:
        return len(self._queues.waiting)

    @property
    def num_free_blocks(self) -> int:
        return self._tables.num_free

    @property
    def num_preemptions(self) -> int:
        """How often a running sequence's cache was taken away since start."""
        return self._queues.preemptions

    @property
    def prefix_cache_queries(self) -> int:
        """Prompt tokens that were looked for in the cache since start."""
        return self._tables.queried_tokens

    @property
    def prefix_cache_hits(self) -> int:
        """Those of them that were found."""
        return self._tables.hit_tokens

    @property
    def has_work(self) -> bool:
        return bool(self._queues.running or self._queues.waiting)

    @property
    def num_decoding(self) -> int:
        return sum(sequence.decoding for sequence in self._queues.running)

    @property
    def is_steady(self) -> bool:
        """Whether nothing waits and all that runs is decoding, without drafts of its own."""
        queues = self._queues
        return not queues.waiting and all(
            sequence.decoding and sequence.request.prediction is None for sequence in queues.running
        )

    def add(self, request: Request, sink: OutputSink) -> None:
        """Queue a request. Raises QueueFullError, and ValueError for an id that is in use."""
        self._queues.add(request, sink)

    def abort(self, request_id: str) -> None:
        """Free what a request holds; unknown ids are ignored."""
        sequence = self._queues.find(request_id)
        if sequence is not None:
            self._end(sequence, finished=False)

    def preempt(self, request_id: str) -> None:
        """Take a running request's cache away; it is computed again when there is room."""
        sequence = self._queues.find(request_id)
        if sequence is not None and sequence.blocks:
            self._queues.preempt(sequence)

    def end_all(self) -> list[OutputSink]:
        """Free everything; the sinks of what was not finished."""
        sequences = self._queues.all()
        for sequence in sequences:
            self._end(sequence, finished=False)
        if self._recorder is not None:
            self._recorder.close()
        return [sequence.sink for sequence in sequences]

    def admit(self) -> None:
        """Start waiting sequences while there is room for all they are known to need."""
        self._queues.admit()

    def views(self) -> tuple[list[SequenceView], list[tuple[int, bool]]]:
        """What proposers are told before this step, and the sequences that have ended.

        Empty while nothing is wanted of them: what was committed meanwhile travels with the next
        view.
        """
        closed = self._queues.take_closed()
        self._asked = {}
        drafting = [s for s in self._queues.running if s.ask_limit > 0]
        for sequence in drafting:
            most = min(sequence.most_drafts(), sequence.ask_limit)
            limit = most if sequence.decoding else 0
            self._asked[sequence.sequence_id] = self._controller.wanted(
                len(self._queues.running), limit
            )
        new = any(not sequence.announced for sequence in drafting)
        if not new and not any(self._asked.values()):
            return [], closed
        return [s.view(self._asked[s.sequence_id]) for s in drafting], closed

    def plan(self, blocks: dict[int, list[DraftBlock]]) -> list[Planned]:
        """The step's chunks: a round of each decoding sequence, then prefill within the budget."""
        decoding = [s for s in self._queues.running if s.decoding]
        prefilling = [s for s in self._queues.running if not s.decoding]
        room = max(self._budget - len(decoding), MIN_PREFILL)
        shares = self._prefill.plan(prefilling, decoding, room)
        share = sum(count for _, count in shares)
        offers = {s.sequence_id: self._offers(s, blocks) for s in decoding}
        decisions = self._controller.plan(
            [self._candidate(s, offers[s.sequence_id]) for s in decoding],
            running=len(self._queues.running),
            other_query_tokens=share,
            total_context=sum(len(s.ids) for s in decoding),
            draft_budget=max(self._budget - len(decoding) - share, 0),
        )
        planned: list[Planned] = []
        for sequence, decision in zip(decoding, decisions, strict=True):
            if not sequence.blocks:
                continue
            given = tuple(offers[sequence.sequence_id])
            refused = not given and bool(offered.usable(sequence, blocks))
            decision = constraints.explained(offered.explained(sequence, decision), refused=refused)
            try:
                part = self._round(sequence, decision)
            except ConstraintFailure as failure:
                self._fail(sequence, failure)
                continue
            if part is not None:
                planned.append(Planned(sequence, part[0], part[1], given))
        # A preemption may have ended a sequence that was planned before it.
        planned = [part for part in planned if part.sequence.blocks]
        for sequence, count in shares:
            if not sequence.blocks:
                continue
            try:
                chunk = prefill_chunk(sequence, count)
            except ConstraintFailure as failure:
                self._fail(sequence, failure)
                continue
            planned.append(Planned(sequence, chunk, PREFILL))
        return planned

    def take_copies(self) -> list[tuple[int, int]]:
        """(from, to) blocks that the engine copies, in order, before it runs what was planned."""
        return self._tables.take_copies()

    def apply(
        self, planned: list[Planned], verdicts: list[Verdict | None], times: StepTimes
    ) -> list[tuple[OutputSink, Output]]:
        """Commit a step's verdicts; what each request is told."""
        self._prefill.observe(planned, times.verify_ns * 1e-9)
        if self._recorder is not None:
            self._recorder.observe(planned, verdicts, self._asked, times)
        self.step_times.observe(
            times.draft_wait_ns,
            times.verify_ns,
            drafted=any(part.decision.drafted for part in planned),
            prefilled=any(part.decision is PREFILL for part in planned),
        )
        outputs: list[tuple[OutputSink, Output]] = []
        for part, verdict in zip(planned, verdicts, strict=True):
            sequence = part.sequence
            if not sequence.blocks:
                continue
            told: tuple[TokenLogprob, ...] = ()
            if verdict is not None:
                told = sequence.tell_prompt(part.chunk.start, verdict.prompt_logprobs)
                if verdict.refusal:
                    outputs.append((sequence.sink, self._end_refused(sequence, verdict, told)))
                    continue
            if verdict is None or not verdict.tokens:
                sequence.computed += len(part.chunk.ids)
                self._tables.publish(sequence)
                if told:
                    outputs.append((sequence.sink, Output(prompt_logprobs=told)))
                continue
            try:
                outputs.append((sequence.sink, self._commit(part, verdict, times, told)))
            except ConstraintFailure as failure:
                self._end(sequence, finished=False)
                outputs.append((sequence.sink, Output(error=str(failure))))
        return outputs

    def _end_refused(
        self, sequence: Sequence, verdict: Verdict, prompt_logprobs: tuple[TokenLogprob, ...]
    ) -> Output:
        """End a request that nothing may follow: its structure may be complete, or it is at fault.

        Complete output ends like this where min_tokens or allowed_token_ids forbid its stop ids.
        """
        complete = constraints.satisfied(sequence)
        self._end(sequence, finished=complete)
        if complete:
            return Output(
                finish_reason=FinishReason.STOP,
                cached_prompt_tokens=sequence.cached,
                prompt_logprobs=prompt_logprobs,
            )
        return Output(refusal=verdict.refusal)

    def _fail(self, sequence: Sequence, failure: ConstraintFailure) -> None:
        """End a request whose constraint cannot say what may follow; the others run on."""
        self._end(sequence, finished=False)
        sequence.sink(Output(error=str(failure)))

    def _offers(self, sequence: Sequence, blocks: dict[int, list[DraftBlock]]) -> list[DraftBlock]:
        """What may be verified of the blocks that continue the sequence as it is."""
        try:
            return constraints.admissible(sequence, offered.usable(sequence, blocks))
        except ConstraintFailure as failure:
            self._fail(sequence, failure)
            return []

    def _commit(
        self,
        part: Planned,
        verdict: Verdict,
        times: StepTimes,
        prompt_logprobs: tuple[TokenLogprob, ...],
    ) -> Output:
        sequence, decision = part.sequence, part.decision
        teach(self._controller, part, verdict)
        base = sequence.num_output
        tokens, reason, stop = constraints.commit(sequence, sequence.cut(verdict.tokens))
        sequence.ids.extend(tokens)
        sequence.computed = len(sequence.ids) - 1
        sequence.proposer = decision.block.proposer if decision.block and decision.drafted else ""
        sequence.drafted = decision.drafted
        sequence.accepted = min(verdict.accepted, len(tokens))
        round_ = Round(
            base=base,
            offered=len(decision.block.token_ids) + decision.block.refused if decision.block else 0,
            drafted=decision.drafted,
            accepted=sequence.accepted,
            emitted=len(tokens),
            proposer=sequence.proposer,
            off_reason=decision.off_reason,
            draft_wait_ns=times.draft_wait_ns,
            verify_ns=times.verify_ns,
            lookahead_hit=bool(decision.block and decision.block.lookahead_hit),
            draft_token_ids=decision.block.token_ids[: decision.drafted] if decision.block else (),
        )
        if reason is not None:
            self._end(sequence, finished=True)
        else:
            self._tables.publish(sequence)
        return Output(
            token_ids=tuple(tokens),
            round=round_,
            finish_reason=reason,
            stop_token_id=stop,
            cached_prompt_tokens=sequence.cached,
            queue_ns=sequence.queue_ns if base == 0 else 0,
            logprobs=verdict.logprobs[: len(tokens)],
            prompt_logprobs=prompt_logprobs,
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
        if not self._tables.reserve(sequence, len(sequence.ids) + decision.drafted):
            decision = Decision(decision.block, 0, "the KV cache is full")
            if not self._queues.make_room(sequence, len(sequence.ids)):
                return None
        return round_chunk(sequence, decision), decision

    def _end(self, sequence: Sequence, *, finished: bool) -> None:
        self._queues.end(sequence, finished=finished)
        self._controller.close(sequence.sequence_id)
        if self._recorder is not None:
            self._recorder.end(sequence.sequence_id)
