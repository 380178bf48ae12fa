"""A scheduler on the toy engine, stepped by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.acceptance import Round
from outrider.draft_schedule import DraftSchedule
from tests.toy_engine import Guess, ToyEngine, ToySource, random_guess
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.engines.base import Chunk
from verifier_service.messages import (
    Constraint,
    NoDrafts,
    Output,
    RejectionRule,
    Request,
    Sampling,
)
from verifier_service.prediction import PredictedIds
from verifier_service.scheduler import Scheduler, StepTimes


@dataclass
class Bench:
    """An engine, a scheduler and a source. `step_ns` is what each step is said to have taken."""

    guess: Guess | None = random_guess
    k: int = 4
    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    budget: int = 64
    max_waiting: int = 100
    adaptive: bool = False
    rule: RejectionRule = RejectionRule.COUPLED
    prefix_caching: bool = True
    neighbours: bool = False
    stall_s: float = float("inf")
    step_ns: int = 2
    schedule: DraftSchedule | None = None
    # Ceiling of requests with a prediction where k is 0.
    predicted_k: int = 0
    outputs: dict[str, list[Output]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = ToyEngine(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            rule=self.rule,
            neighbours=self.neighbours,
        )
        self.source = ToySource(self.guess) if self.guess else NoDrafts()
        costs = CostTable.from_profile({1: 0.01, 33: 0.011})
        ceiling = self.k or self.predicted_k
        self.controller = Controller(ceiling, costs, adaptive=self.adaptive, schedule=self.schedule)
        self.scheduler = Scheduler(
            self.engine.cache,
            self.controller,
            num_speculative_tokens=self.k,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_waiting=self.max_waiting,
            prefix_caching=self.prefix_caching,
            prefill_stall_s=self.stall_s,
            num_prediction_tokens=ceiling,
        )

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        sampling: Sampling,
        k: int | None = None,
        *,
        salt: str = "",
        priority: int = 0,
        constraint: Constraint | None = None,
        prediction: Sequence[int] | None = None,
        proposer: str = "",
    ) -> None:
        self.outputs[name] = []
        request = Request(
            name,
            list(prompt),
            sampling,
            num_speculative_tokens=k,
            cache_salt=salt,
            priority=priority,
            constraint=constraint,
            prediction=None if prediction is None else PredictedIds(prediction),
            proposer=proposer,
        )
        self.scheduler.add(request, self.outputs[name].append)

    def step(self) -> list[Chunk]:
        """One step; the chunks that ran."""
        self.scheduler.admit()
        views, closed = self.scheduler.views()
        self.source.send(views, closed)
        planned = self.scheduler.plan(self.source.collect())
        self.engine.copy_blocks(self.scheduler.take_copies())
        chunks = [part.chunk for part in planned]
        if planned:
            verdicts = self.engine.run(chunks)
            times = StepTimes(1, self.step_ns)
            for sink, output in self.scheduler.apply(planned, verdicts, times):
                sink(output)
        return chunks

    def finish(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work:
                views, closed = self.scheduler.views()
                self.source.send(views, closed)
                return
            self.step()
        raise AssertionError("the scheduler made no progress")

    def run(self, name: str, prompt: Sequence[int], sampling: Sampling, **how: Any) -> list[int]:
        """Add one request, run until nothing is left, its tokens."""
        self.add(name, prompt, sampling, **how)
        self.finish()
        return self.tokens(name)

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.token_ids]

    def rounds(self, name: str) -> list[Round]:
        return [output.round for output in self.outputs[name] if output.round is not None]

    def cached(self, name: str) -> int:
        return self.outputs[name][-1].cached_prompt_tokens


def plain(prompt: Sequence[int], sampling: Sampling) -> list[int]:
    """What a request answers alone, without drafts and without anything cached."""
    bench = Bench(guess=None, k=0, prefix_caching=False)
    return bench.run("plain", prompt, sampling)


def sampling(**changes: Any) -> Sampling:
    return replace(Sampling(temperature=1.0, seed=5, max_tokens=20), **changes)
