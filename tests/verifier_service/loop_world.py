"""The core's loop over an engine that begins steps ahead, on a clock that is told to go: shared."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import pytest

from tests.toy_engine import Guess, ToyEngine, ToySource
from tests.verifier_service.test_loop import Answer
from verifier_service import loop, next_step
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.engines.base import (
    Chunk,
    GoesOn,
    Joining,
    Meanwhile,
    Verdict,
    no_more,
    nobody,
)
from verifier_service.loop import Core
from verifier_service.messages import DraftBlock, Expected, Foreseen, Request, SequenceView
from verifier_service.scheduler import Scheduler

FORWARD_NS, ASKING_NS = 5_000_000, 1_000_000


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now


class AheadEngine(ToyEngine):
    """Asks after each step of verifications whether to begin the next; a forward takes its time.

    What was begun is computed when it is asked for; only the clock knows of the difference.
    """

    # How long the launch of a step takes that reads prompts.
    launch_ns = 0

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.ready: int | None = None
        self.asked: list[tuple[list[Verdict], bool]] = []
        self.sure: list[bool] = []
        # Of each step that was begun, how many joined it.
        self.joined: list[int] = []
        # What happens while the step with this number runs.
        self.during: dict[int, Callable[[], object]] = {}

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        self.sure.append(sure)
        self.during.get(len(self.sure), lambda: None)()
        begun, self.ready = self.ready, None
        begun = begun or self.clock.now + FORWARD_NS
        if sure and all(chunk.samples for chunk in chunks):
            self.joined.append(len(joining() or ()))
        if any(len(chunk.ids) > chunk.drafts + 1 for chunk in chunks):
            self.clock.now += self.launch_ns
        verdicts = super().run(chunks, meanwhile=meanwhile)
        self.clock.now = max(self.clock.now, begun)
        told = [verdict for verdict in verdicts if verdict is not None]
        if goes_on is not None and len(told) == len(chunks):
            begins = goes_on(told)
            self.asked.append((told, begins))
            if begins:
                if not sure:
                    self.joined.append(len(joining() or ()))
                self.ready = self.clock.now + FORWARD_NS
        return verdicts


class SlowSource(ToySource):
    """Takes its time, and knows beforehand what it is told to.

    `knows` says by the number of the question whether no draft will come, `foresees` whether the
    drafts themselves are known. `sent` are the times of its messages.
    """

    def __init__(
        self,
        clock: Clock,
        guess: Guess,
        knows: Callable[[int], bool],
        foresees: bool,
    ) -> None:
        super().__init__(guess)
        self.clock = clock
        self.knows = knows
        self.foresees = foresees
        self.sent: list[int] = []
        self.outcomes: list[list[tuple[int, list[int]]]] = []

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.sent.append(self.clock.now)
        super().send(views, closed)

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        self.clock.now += ASKING_NS if wait else 0
        return super().collect()

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        if not self.foresees:
            return None
        drafts = {view.sequence_id: tuple(self.guess(view, self.rng)) for view in views}
        return Foreseen(
            {
                view.sequence_id: [
                    DraftBlock("toy", len(view.ids), drafts[view.sequence_id], match_length=2)
                ]
                for view in views
                if drafts[view.sequence_id]
            }
        )

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        self.outcomes.append([(sequence_id, list(ids)) for sequence_id, ids in outcomes])
        return Expected(0, 0) if self.knows(len(self.outcomes)) else None


class SpyController(Controller):
    def __init__(self, ceiling: int, costs: CostTable, *, adaptive: bool) -> None:
        super().__init__(ceiling, costs, adaptive=adaptive)
        self.waits: list[float] = []
        self.spent: list[float] = []
        self.unused: list[int] = []
        self.looks: list[tuple[int, int, bool]] = []
        self.begun: list[float | None] = []
        self.held: list[float] = []

    def observe_wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        super().observe_wait(seconds)

    def observe_held(self, known: int, sequences: int, seconds: float) -> None:
        self.held.append(seconds)
        super().observe_held(known, sequences, seconds)

    def observe_step(
        self,
        sequences: int,
        query_tokens: int,
        context_tokens: int,
        seconds: float,
        prefill_tokens: int = 0,
    ) -> None:
        if not prefill_tokens:
            self.spent.append(seconds)
        super().observe_step(sequences, query_tokens, context_tokens, seconds, prefill_tokens)


def run(
    monkeypatch: pytest.MonkeyPatch,
    guess: Guess,
    knows: Callable[[int], bool],
    requests: Sequence[Request],
    *,
    foresees: bool = False,
    kinds: tuple[type[SlowSource], type[SpyController]] = (SlowSource, SpyController),
    late: tuple[int, Request] | None = None,
) -> SimpleNamespace:
    clock = Clock()
    for module in (loop, next_step):
        monkeypatch.setattr(module, "time", clock)
    engine = AheadEngine(clock)
    source = kinds[0](clock, guess, knows, foresees)
    controller = kinds[1](4, CostTable.from_profile({1: 0.005, 33: 0.006}), adaptive=False)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_waiting=10,
    )
    core = Core(engine, scheduler, controller, source, max_waiting=10, speculative=True)
    answers = [Answer() for _ in requests]
    if late is not None:
        step, arriving = late
        answers.append(Answer())
        engine.during[step] = partial(core.submit, arriving, answers[-1])
    # Whoever comes first runs alone for a step, and no longer, however slow this thread is.
    submitted = threading.Event()
    engine.during.setdefault(1, submitted.wait)
    for one, answer in zip(requests, answers, strict=False):
        core.submit(one, answer)
    submitted.set()
    tokens = [answer.wait().tokens for answer in answers]
    core.shutdown()
    return SimpleNamespace(engine=engine, source=source, controller=controller, tokens=tokens)


def nothing(view: SequenceView, rng: random.Random) -> Sequence[int]:
    return ()


class BlindController(SpyController):
    """Every step behind which nothing was seen may be begun blindly; drafts are always held for."""

    def begins_blindly(self, unused: int) -> bool:
        self.unused.append(unused)
        return unused == 0

    def observe_look(self, unused: int, found: int, *, holds: bool) -> None:
        self.looks.append((unused, found, holds))

    def observe_begun(self, looked: float | None) -> None:
        self.begun.append(looked)


class SeeingSource(SlowSource):
    """Behind the outcomes with these numbers there are drafts, of one sequence."""

    drafts: tuple[int, ...] = ()

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        super().behind(outcomes)
        return Expected(int(len(self.outcomes) in self.drafts), 0)
