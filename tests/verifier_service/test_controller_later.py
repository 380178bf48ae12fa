"""What the controller learns while the device works: the same, one plan later."""

from __future__ import annotations

from collections.abc import Callable

from tests.verifier_service.test_controller import block, candidate, controller
from verifier_service.controller import Controller


def _a_round(control: Controller, sequence_id: int = 1, accepted: int = 0) -> None:
    control.begin(1)
    (decision,) = control.plan([candidate(sequence_id, [block()])])
    if decision.block is not None:
        control.observe_round(
            sequence_id,
            decision.block,
            greedy=True,
            drafted=decision.drafted,
            accepted=min(accepted, decision.drafted),
        )
    control.observe_step(1, 1 + decision.drafted, 100, 0.03)


def _known(control: Controller) -> tuple[object, ...]:
    return control.estimates.rates(), control.costs.milliseconds()


def test_nothing_is_learned_before_it_is_time() -> None:
    control = controller()
    _a_round(control, accepted=4)
    control.learns_later = True
    before = _known(control)
    _a_round(control, accepted=0)
    assert _known(control) == before
    control.learn()
    rates, costs = _known(control)
    assert rates != before[0]
    assert costs != before[1]


def test_what_is_learned_later_is_the_same() -> None:
    at_once, later = controller(), controller()
    later.learns_later = True
    for accepted in (4, 0, 2, 4, 1):
        for control in (at_once, later):
            _a_round(control, accepted=accepted)
        later.learn()
    assert _known(later) == _known(at_once)


def test_it_is_learned_once() -> None:
    control = controller()
    control.learns_later = True
    _a_round(control, accepted=4)
    control.learn()
    known = _known(control)
    control.learn()
    assert _known(control) == known


def test_a_sequence_that_ended_is_forgotten_behind_what_its_last_round_taught() -> None:
    def offsets(forgets: Callable[[Controller], None]) -> int:
        control = controller()
        control.learns_later = True
        _a_round(control, sequence_id=7, accepted=4)
        forgets(control)
        control.learn()
        return len(control.estimates._offsets._by_sequence)

    assert offsets(lambda control: None) == 1
    assert offsets(lambda control: control.close(7)) == 0
