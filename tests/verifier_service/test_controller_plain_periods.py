"""The controller under plain periods: what they hold back, and what it makes of what they show."""

from __future__ import annotations

from tests.verifier_service.test_controller import K, block, candidate, controller


def test_a_plain_period_asks_for_nothing_and_verifies_nothing_and_says_so() -> None:
    control = controller(plain_share=0.5)
    held = []
    for _ in range(60):
        control.begin(1)
        ask = control.wanted(1, K)
        # A request's own prediction is offered without being asked for.
        (decision,) = control.plan([candidate(blocks=[block()], ask=ask)])
        held.append(ask == 0)
        assert (decision.drafted == 0) == (ask == 0)
        if ask == 0:
            assert decision.off_reason == "a plain period, to measure what drafts gain"
        control.observe_speed(1, 1 + decision.drafted, 0.01, drafted=decision.drafted > 0)
    assert 20 <= sum(held) <= 40
    measured = control.explain().measured
    assert measured.periods >= 1
    assert measured.gain > 1.0


def test_plain_periods_hold_where_every_draft_is_verified_too() -> None:
    control = controller(plain_share=0.5, adaptive=False)
    drafted = []
    for _ in range(40):
        control.begin(1)
        (decision,) = control.plan([candidate(blocks=[block()], ask=control.wanted(1, K))])
        drafted.append(decision.drafted)
        control.observe_speed(1, 1 + decision.drafted, 0.01, drafted=decision.drafted > 0)
    assert set(drafted) == {0, K}


def test_drafts_that_measurably_lose_are_given_up_whatever_the_promise() -> None:
    """The table says that drafts are cheap; all that it does not know makes them dear."""
    control = controller(plain_share=None)
    drafted = []
    for _ in range(1500):
        control.begin(1)
        ask = control.wanted(1, K)
        (decision,) = control.plan([candidate(blocks=[block()] if ask else [], ask=ask)])
        drafted.append(decision.drafted)
        if decision.block is not None:
            control.observe_round(
                1, decision.block, greedy=True, drafted=decision.drafted, accepted=decision.drafted
            )
        control.observe_speed(
            1,
            1 + decision.drafted,
            0.1 if decision.drafted else 0.01,
            drafted=decision.drafted > 0,
        )
    assert sum(map(bool, drafted[750:])) < 75
    assert control.state().startswith("off: measured: drafts make decoding ")
