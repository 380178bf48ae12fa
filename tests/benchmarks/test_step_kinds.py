from __future__ import annotations

import pytest

from benchmarks.step_kinds import StepKinds, counting
from verifier_service.controller import Controller
from verifier_service.costs import CostTable


def controller() -> Controller:
    return Controller(4, CostTable.from_profile({1: 0.01, 33: 0.011}))


def test_steps_are_counted_by_what_the_controller_is_told() -> None:
    told = controller()
    told.observe_step(2, 2, 9, 0.01)
    with counting(Controller) as found:
        told.observe_step(2, 2, 9, 0.01)
        told.observe_step(2, 30, 40, 0.02, prefill_tokens=28)
        for looked in (None, None, 0.001):
            told.observe_step(2, 2, 9, 0.01)
            told.observe_begun(looked)
        told.observe_held(1, 2, 0.001)
        told.observe_waited(0, 0.001)
        told.observe_waited(2, 0.001)
    told.observe_held(1, 2, 0.001)
    assert found == StepKinds(steps=5, blindly=2, looked=1, held=1, waited=1, prompts=1)
    assert StepKinds.from_json(found.to_json()) == found


def test_the_controller_is_still_told() -> None:
    told = controller()
    before = told.costs.seconds(2, 2)
    with counting(Controller):
        for _ in range(50):
            told.observe_step(2, 2, 9, 0.05)
    assert told.costs.seconds(2, 2) > before


def test_the_class_is_as_it_was_and_what_is_gone_is_an_error() -> None:
    before = dict(vars(Controller))
    with counting(Controller):
        assert dict(vars(Controller)) != before
    assert dict(vars(Controller)) == before

    class Other:
        def observe_step(self) -> None: ...

    kept = dict(vars(Other))
    with pytest.raises(AttributeError, match="observe_begun"), counting(Other):
        pass
    assert dict(vars(Other)) == kept
