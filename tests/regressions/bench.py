"""A verifier stepped by hand: the scheduler on the toy engine, drafts from whatever a test names.

The step is the core's own, without its thread: no sink is called later than the step that made
its output, and nothing depends on time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from outrider.acceptance import Acceptance, Round
from tests.toy import Toy
from tests.toy_engine import ToyEngine
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.engines.base import Chunk
from verifier_service.messages import (
    DraftSource,
    FinishReason,
    NoDrafts,
    Output,
    RejectionRule,
    Request,
    Sampling,
)
from verifier_service.scheduler import Planned, Scheduler, StepTimes


@dataclass
class Bench:
    """`k` is the ceiling; without a `source` it decodes plainly."""

    source: DraftSource = field(default_factory=NoDrafts)
    k: int = 4
    num_blocks: int = 256
    block_size: int = 4
    max_num_seqs: int = 32
    budget: int = 256
    adaptive: bool = False
    rule: RejectionRule = RejectionRule.COUPLED
    # Whether the engine wants a sequence's blocks side by side, as a CPU does.
    neighbours: bool = False
    toy: Toy = field(default_factory=Toy.target)

    def __post_init__(self) -> None:
        self.outputs: dict[str, list[Output]] = {}
        self.engine = ToyEngine(
            self.toy,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            rule=self.rule,
            neighbours=self.neighbours,
        )
        self.controller = Controller(
            self.k, CostTable.from_profile({1: 0.01, 33: 0.011}), adaptive=self.adaptive
        )
        self.scheduler = Scheduler(
            self.engine.cache,
            self.controller,
            num_speculative_tokens=self.k,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_waiting=1000,
        )

    def add(self, name: str, prompt: Sequence[int], sampling: Sampling, **fields: object) -> None:
        """Queue a request; `fields` are further ones of `Request`."""
        outputs = self.outputs[name] = []
        request = Request(name, list(prompt), sampling, **fields)  # type: ignore[arg-type]
        self.scheduler.add(request, lambda output: outputs.append(output))

    def ask(self) -> list[Planned]:
        """The first half of a step: ask for drafts, take what came, plan."""
        self.scheduler.admit()
        views, closed = self.scheduler.views()
        if views or closed:
            self.source.send(views, closed)
        asked = any(view.max_draft_tokens for view in views)
        return self.scheduler.plan(self.source.collect() if asked else {})

    def verify(self, planned: list[Planned]) -> None:
        """The second half: run the engine, commit, hand out."""
        self.engine.copy_blocks(self.scheduler.take_copies())
        if not planned:
            return
        verdicts = self.engine.run([part.chunk for part in planned])
        for sink, output in self.scheduler.apply(planned, verdicts, StepTimes(1, 2)):
            sink(output)

    def step(self) -> None:
        self.verify(self.ask())

    def begin(self) -> None:
        """Step until every request has its first token."""
        while not all(self.outputs.values()):
            self.step()

    def finish(self, limit: int = 4000) -> None:
        """Step until nothing is left, then tell the proposers what closed."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                views, closed = self.scheduler.views()
                if views or closed:
                    self.source.send(views, closed)
                return
            self.step()
        raise AssertionError("the scheduler made no progress")

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.token_ids]

    def rounds(self, name: str) -> list[Round]:
        return [output.round for output in self.outputs[name] if output.round is not None]

    def reason(self, name: str) -> FinishReason | None:
        return self.outputs[name][-1].finish_reason

    def acceptance(self, name: str) -> Acceptance:
        total = Acceptance(self.k)
        for round_ in self.rounds(name):
            total.add(round_)
        return total

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for step in self.engine.steps for chunk in step]


def plain(prompt: Sequence[int], sampling: Sampling) -> list[int]:
    """What decoding without speculation says, for a request that is alone on the machine."""
    return list(_plain(tuple(prompt), sampling))


@cache
def _plain(prompt: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
    bench = Bench(k=0)
    bench.add("plain", prompt, sampling)
    bench.finish()
    return tuple(bench.tokens("plain"))


def greedy(max_tokens: int = 20, **fields: object) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def seeded(seed: int, max_tokens: int = 20, **fields: object) -> Sampling:
    return Sampling(seed=seed, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
