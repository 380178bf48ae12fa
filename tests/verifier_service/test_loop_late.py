"""Proposers that do not look ahead: asked and waited for, or left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.toy import Toy
from tests.toy_engine import oracle
from tests.verifier_service.loop_world import (
    SlowSource,
    SpyController,
    nothing,
    run,
)
from tests.verifier_service.test_loop import request
from verifier_service.costs import CostTable
from verifier_service.messages import Expected, Foreseen, SequenceView


class LateSource(SlowSource):
    """A draft model on the target's own card: nothing of it is known before it is asked."""

    looks_ahead = False  # type: ignore[assignment]
    asked = 0

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.asked += any(view.max_draft_tokens for view in views)
        super().send(views, closed)

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen:
        return Foreseen({}, unknown=sum(view.max_draft_tokens > 0 for view in views))

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected:
        return Expected(0, len(outcomes))


class WaitingController(SpyController):
    """Waits, or does not, as `pays` says."""

    pays = True

    def __init__(self, ceiling: int, costs: CostTable, *, adaptive: bool) -> None:
        super().__init__(ceiling, costs, adaptive=True)
        self.prepared: set[bool] = set()

    def waits_for(self, unknown: int, *, standing: bool = True, prepared: bool = True) -> bool:
        if unknown > 0:
            self.prepared.add(prepared)
        return unknown > 0 and self.pays


@pytest.mark.parametrize("pays", [True, False])
def test_who_does_not_look_ahead_is_asked_and_waited_for_or_left_alone(
    pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitingController, "pays", pays)
    greedy = request("a", 24)
    greedy.sampling = replace(greedy.sampling, temperature=0.0)
    kinds = (LateSource, WaitingController)
    seen = run(monkeypatch, oracle(Toy.target()), lambda _: False, [greedy], kinds=kinds)
    plain = run(monkeypatch, nothing, lambda _: True, [greedy])
    assert seen.tokens == plain.tokens
    begun = [begins for _, begins in seen.engine.asked]
    if pays:
        assert seen.controller.prepared == {False}
        # The prompt's token, then five a step.
        assert len(seen.engine.steps) == 6
        assert seen.source.asked == 5
        assert True not in begun[:-1]
    else:
        assert seen.source.asked == 0
        assert begun == [True] * len(begun)
        assert len(seen.engine.steps) == 24


def test_nobody_looks_behind_a_step_for_whoever_wants_no_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = request("plain", 12)
    plain.num_speculative_tokens = 0
    seen = run(monkeypatch, nothing, lambda _: True, [plain], kinds=(LateSource, WaitingController))
    assert seen.engine.sure == [True] * 12
    assert seen.controller.prepared == set()


class HesitantController(WaitingController):
    """Waits from the fourth question on, and is switched off to begin with."""

    def __init__(self, ceiling: int, costs: CostTable, *, adaptive: bool) -> None:
        super().__init__(ceiling, costs, adaptive=adaptive)
        self._switch.on, self._switch.gain, self._switch.wait = False, -0.5, 0.1
        self.questions = 0

    def waits_for(self, unknown: int, *, standing: bool = True, prepared: bool = True) -> bool:
        self.questions += unknown > 0
        return unknown > 0 and self.questions > 3


def test_who_was_left_alone_is_asked_once_a_wait_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = request("a", 24)
    greedy.sampling = replace(greedy.sampling, temperature=0.0)
    kinds = (LateSource, HesitantController)
    seen = run(monkeypatch, oracle(Toy.target()), lambda _: False, [greedy], kinds=kinds)
    begun = [begins for _, begins in seen.engine.asked]
    # The prompt's step and two behind it; asking is off, but it is what the next one is held for.
    assert begun[:4] == [True, True, True, False]
    assert seen.source.asked >= 4
    assert len(seen.engine.steps) < 10
