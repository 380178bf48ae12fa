"""Which sequences a step runs, with how many tokens each, and what its verdicts mean.

Knows sequences, blocks and budgets; does not know tensors, threads or transports. A step is
`admit`, `views` (drafts are asked for), `plan`, the engine's run, `apply`.
"""

from __future__ import annotations

import math

from verifier_service import constraints, offered
from verifier_service.block_tables import BlockTables
from verifier_service.constraints import ConstraintFailure
from verifier_service.controller import Controller, Decision
from verifier_service.engines.base import CacheShape, Verdict
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
from verifier_service.step_outcome import commit
from verifier_service.step_plan import (
    PREFILL,
    Newcomers,
    Planned,
    StepRecorder,
    StepTimes,
    prefill_chunk,
    round_chunk,
    teach,
)
from verifier_service.step_times import StepTimesTotal

__all__ = ["PREFILL", "Newcomers", "Planned", "Scheduler", "StepTimes"]


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

    def goes_on_behind(self, planned: list[Planned], joined: int = 0) -> bool:
        """Whether a plain round of all that this step runs may follow it, in this order.

        Every prompt in it is read to its end, nobody has drafts of its own, and nobody else runs
        but the `joined` that have begun since.
        """
        running = self._queues.running
        return len(planned) + joined == len(running) and all(
            part.sequence is sequence and part.chunk.samples and sequence.request.prediction is None
            for part, sequence in zip(planned, running, strict=False)
        )

    def join(self, planned: list[Planned]) -> Newcomers:
        """Start waiting sequences: who joins the step behind the one that is `planned` and runs.

        Nothing need be known of that one's outcome; all that runs is in it, but who has joined.
        """
        self._queues.admit()
        new = self._queues.running[len(planned) :]
        prompts = [sequence for sequence in new if not sequence.decoding]
        shares: list[tuple[Sequence, int]] = []
        if prompts:
            decoding = [part.sequence for part in planned]
            room = max(self._budget - len(planned) - len(new), MIN_PREFILL)
            shares = self._prefill.plan(prompts, decoding, room)
        # One whose prompt is one id, or cached but for its last one, decodes at once.
        rounds = [sequence for sequence in new if sequence.decoding]
        return Newcomers(len(new), rounds, shares)

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
        queues, asked = self._queues, {}
        closed = queues.take_closed()
        most = self._controller.most_wanted(len(queues.running))
        drafting: list[Sequence] = []
        new = wanted = False
        for sequence in queues.running:
            if sequence.ask_limit <= 0:
                continue
            drafting.append(sequence)
            ask = 0
            if sequence.decoding:
                ask = min(sequence.most_drafts(), sequence.ask_limit, most)
                wanted = wanted or ask > 0
            asked[sequence.sequence_id] = ask
            new = new or not sequence.announced
        self._asked = asked
        if not new and not wanted:
            return [], closed
        return [s.view(asked[s.sequence_id]) for s in drafting], closed

    def plan(
        self,
        blocks: dict[int, list[DraftBlock]],
        joined: Newcomers | None = None,
    ) -> list[Planned]:
        """The step's chunks: a round of each decoding sequence, then prefill within the budget.

        Where the step was begun, its prefill is of those that have `joined` it.
        """
        asked = self._asked
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self._queues.running:
            (decoding if sequence.decoding else prefilling).append(sequence)
        shares: list[tuple[Sequence, int]] = []
        if joined is not None:
            shares = [share for share in joined.shares if share[0].blocks]
        elif prefilling:
            room = max(self._budget - len(decoding), MIN_PREFILL)
            shares = self._prefill.plan(prefilling, decoding, room)
        share = sum(count for _, count in shares)
        offers = [self._offers(sequence, blocks) for sequence in decoding]
        decisions = self._controller.plan(
            [
                offered.candidate(sequence, given, asked.get(sequence.sequence_id, 0))
                for sequence, given in zip(decoding, offers, strict=True)
            ],
            running=len(self._queues.running),
            other_query_tokens=share,
            total_context=sum(len(sequence.ids) for sequence in decoding),
            draft_budget=max(self._budget - len(decoding) - share, 0),
        )
        planned: list[Planned] = []
        for sequence, given, decided in zip(decoding, offers, decisions, strict=True):
            if not sequence.blocks:
                continue
            decision = decided
            if decision.block is None:
                decision = offered.explained(sequence, decision)
                if not given and sequence.request.constraint is not None:
                    refused = bool(offered.usable(sequence, blocks))
                    decision = constraints.explained(decision, refused=refused)
            try:
                part = self._round(sequence, decision, given)
            except ConstraintFailure as failure:
                self._fail(sequence, failure)
                continue
            if part is not None:
                planned.append(part)
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
        # Rounds come first in a plan, prefill behind them.
        prefilled = bool(planned) and planned[-1].decision is PREFILL
        if prefilled:
            self._prefill.observe(planned, times.verify_ns * 1e-9)
        if self._recorder is not None:
            self._recorder.observe(planned, verdicts, self._asked, times)
        self.step_times.observe(
            times.draft_wait_ns,
            times.verify_ns,
            drafted=any(part.decision.drafted for part in planned),
            prefilled=prefilled,
        )
        outputs: list[tuple[OutputSink, Output]] = []
        for part, verdict in zip(planned, verdicts, strict=True):
            sequence = part.sequence
            if not sequence.blocks:
                continue
            output = self._outcome(part, verdict, times)
            if output is not None:
                outputs.append((sequence.sink, output))
        return outputs

    def _outcome(self, part: Planned, verdict: Verdict | None, times: StepTimes) -> Output | None:
        """Commit one sequence's verdict; None where its request is told nothing."""
        sequence = part.sequence
        told: tuple[TokenLogprob, ...] = ()
        if verdict is not None and verdict.prompt_logprobs:
            told = sequence.tell_prompt(part.chunk.start, verdict.prompt_logprobs)
        if verdict is not None and verdict.refusal:
            return self._end_refused(sequence, verdict, told)
        if verdict is None or not verdict.tokens:
            sequence.computed += len(part.chunk.ids)
            self._tables.publish(sequence)
            return Output(prompt_logprobs=told) if told else None
        if part.offered:
            teach(self._controller, part, verdict)
        try:
            output = commit(part, verdict, times, told)
        except ConstraintFailure as failure:
            self._end(sequence, finished=False)
            return Output(error=str(failure))
        if output.finish_reason is not None:
            self._end(sequence, finished=True)
        else:
            self._tables.publish(sequence)
        return output

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

    def _offers(
        self, sequence: Sequence, blocks: dict[int, list[DraftBlock]]
    ) -> tuple[DraftBlock, ...]:
        """What may be verified of the blocks that continue the sequence as it is."""
        if sequence.sequence_id not in blocks and sequence.request.prediction is None:
            return ()
        try:
            return tuple(constraints.admissible(sequence, offered.usable(sequence, blocks)))
        except ConstraintFailure as failure:
            self._fail(sequence, failure)
            return ()

    def _round(
        self, sequence: Sequence, decision: Decision, offers: tuple[DraftBlock, ...]
    ) -> Planned | None:
        """A verification; without drafts if blocks are short, None if it had to be preempted."""
        length = len(sequence.ids) + decision.drafted
        if not self._tables.reserve(sequence, length):
            decision = Decision(decision.block, 0, "the KV cache is full")
            if not self._queues.make_room(sequence, len(sequence.ids)):
                return None
        # The step behind is begun before it is planned: where one of all has no block for it, none.
        ahead = min(length + 1, sequence.full_length - 1)
        self._tables.reserve_spare(sequence, ahead, len(self._queues.running))
        return Planned(sequence, round_chunk(sequence, decision), decision, offers)

    def _end(self, sequence: Sequence, *, finished: bool) -> None:
        self._queues.end(sequence, finished=finished)
        self._controller.close(sequence.sequence_id)
        if self._recorder is not None:
            self._recorder.end(sequence.sequence_id)
