"""Answers that nobody knows beforehand: waited for where the controller says so, else let go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.toy import Toy
from tests.toy_engine import oracle
from tests.verifier_service.loop_world import (
    ASKING_NS,
    FORWARD_NS,
    AheadEngine,
    Clock,
    SlowSource,
    SpyController,
)
from tests.verifier_service.test_loop import Answer, request
from verifier_service import loop
from verifier_service.costs import CostTable
from verifier_service.loop import Core
from verifier_service.messages import Expected, Foreseen, SequenceView
from verifier_service.scheduler import Scheduler


class UnsureSource(SlowSource):
    """Never knows an answer beforehand; what it drafts right is there as a stopgap on request."""

    def __init__(self, clock: Clock, *, stopgaps: bool) -> None:
        super().__init__(clock, oracle(Toy.target()), lambda _: False, foresees=True)
        self.stopgaps = stopgaps

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        known = super().foreseen(views)
        assert known is not None
        unknown = sum(view.max_draft_tokens > 0 for view in views)
        return Foreseen({}, unknown, known.blocks if self.stopgaps else {})

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        return Expected(len(outcomes), 0) if self.stopgaps else Expected(0, len(outcomes))


class Patient(SpyController):
    """Waits as it is told to."""

    patience = True
    waited: list[float]
    stood: list[bool]

    def waits_for(self, unknown: int, *, standing: bool = True, prepared: bool = True) -> bool:
        self.stood.append(standing)
        return unknown > 0 and self.patience

    def holds_for(self, known: int) -> bool:
        return known > 0

    def observe_waited(self, unknown: int, seconds: float) -> None:
        self.waited.append(seconds)
        super().observe_waited(unknown, seconds)


def run(monkeypatch: pytest.MonkeyPatch, *, patience: bool, stopgaps: bool) -> SimpleNamespace:
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    engine = AheadEngine(clock)
    source = UnsureSource(clock, stopgaps=stopgaps)
    controller = Patient(4, CostTable.from_profile({1: 0.005, 33: 0.006}), adaptive=False)
    controller.waited, controller.stood = [], []
    controller.patience = patience
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_waiting=10,
    )
    core = Core(engine, scheduler, controller, source, max_waiting=10, speculative=True)
    greedy = request("a")
    greedy.sampling = replace(greedy.sampling, temperature=0.0)
    answer = Answer()
    core.submit(greedy, answer)
    tokens = answer.wait().tokens
    core.shutdown()
    return SimpleNamespace(engine=engine, source=source, controller=controller, tokens=tokens)


def test_a_wait_that_pays_brings_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, patience=True, stopgaps=False)
    assert len(seen.engine.steps) == 4
    assert seen.controller.waited == pytest.approx([ASKING_NS * 1e-9] * len(seen.controller.waited))
    assert seen.controller.waited


def test_a_wait_that_does_not_pay_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = run(monkeypatch, patience=True, stopgaps=False)
    seen = run(monkeypatch, patience=False, stopgaps=False)
    assert seen.tokens == patient.tokens
    assert seen.controller.waited == []
    # One token a step, and every step but those behind the prompt's is begun ahead.
    assert len(seen.engine.steps) == len(seen.tokens)
    assert all(begins for _, begins in seen.engine.asked)
    # Behind every step but the last a wait would have kept the next one from being begun.
    assert seen.controller.stood.count(False) == len(seen.tokens) - 1
    # Proposers hear of each step behind its launch.
    assert seen.source.sent[:10] == [FORWARD_NS * number for number in range(10)]


def test_what_is_left_of_late_answers_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = run(monkeypatch, patience=True, stopgaps=False)
    seen = run(monkeypatch, patience=False, stopgaps=True)
    assert seen.tokens == patient.tokens
    assert seen.controller.waited == []
    assert len(seen.engine.steps) == 4
    assert seen.controller.waits == pytest.approx([0.0] * len(seen.controller.waits))
