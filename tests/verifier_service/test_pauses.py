"""When an answer that look-ahead has not told is worth a wait."""

import math

import pytest

from verifier_service.pauses import Pauses

PLAIN = 0.005


def waited(pauses: Pauses, times: int, seconds: float, right: int, unknown: int, n: int) -> None:
    for _ in range(times):
        pauses.begin()
        pauses.waited(unknown, n, seconds)
        for _ in range(right):
            pauses.verified(1, 1.0, waited=True)


def test_waits_are_tried_before_they_are_judged() -> None:
    pauses = Pauses()
    for _ in range(3):
        assert pauses.pays(1, 8, PLAIN)
        pauses.waited(1, 8, 0.010)
    assert not pauses.pays(1, 8, PLAIN)


def test_a_wait_that_keeps_a_step_from_being_begun_has_to_pay_for_that_too() -> None:
    pauses = Pauses()
    waited(pauses, 60, 0.001, right=1, unknown=1, n=1)
    for _ in range(20):
        pauses.held(1, 1, 0.0045)
    # Nearly every answer is right: 5 ms are gained, for 1 ms of waiting, and 4.5 to plan a step.
    assert pauses.pays(1, 1, PLAIN)
    assert not pauses.pays(1, 1, PLAIN, standing=False)


def test_one_sequence_waits_for_answers_that_are_often_right() -> None:
    pauses = Pauses()
    waited(pauses, 60, 0.001, right=1, unknown=1, n=1)
    assert pauses.pays(1, 1, PLAIN)


def brought(pauses: Pauses, times: int, seconds: float, saved: float, unknown: int, n: int) -> None:
    """Waits for answers that save so many tokens each."""
    for _ in range(times):
        pauses.begin()
        pauses.waited(unknown, n, seconds)
        for _ in range(unknown):
            pauses.verified(round(saved + 1), saved, waited=True)
    pauses.begin()


@pytest.mark.parametrize("n", [1, 8, 32])
def test_where_nobody_looks_ahead_a_wait_is_worth_all_that_it_saves(n: int) -> None:
    pauses = Pauses()
    brought(pauses, 3, 2.0 * PLAIN, 3.0, unknown=n, n=n)
    # Twice a step for three steps' tokens; one of them would not pay.
    assert pauses.pays(n, n, PLAIN, prepared=False)
    assert not pauses.pays(n, n, PLAIN)
    brought(pauses, 60, 2.0 * PLAIN, 1.0, unknown=n, n=n)
    assert not pauses.pays(n, n, PLAIN, prepared=False)


def test_what_was_known_before_is_no_gain_of_a_wait() -> None:
    pauses = Pauses()
    for _ in range(10):
        pauses.begin()
        pauses.waited(1, 1, 2.0 * PLAIN)
        pauses.verified(4, 3.0, waited=False)
    pauses.begin()
    assert not pauses.pays(1, 1, PLAIN, prepared=False)


def test_answers_that_are_never_right_are_not_waited_for() -> None:
    pauses = Pauses()
    waited(pauses, 100, 0.001, right=0, unknown=1, n=1)
    assert not pauses.pays(1, 1, PLAIN)


def test_a_few_of_many_do_not_keep_all_waiting() -> None:
    pauses = Pauses()
    waited(pauses, 60, 0.002, right=8, unknown=32, n=32)
    # A token of one of 32 is worth 0.16 ms, a fourth of them are right: 32 gain 1.25 ms.
    assert not pauses.pays(32, 32, PLAIN)
    assert pauses.pays(32, 32, 2 * PLAIN)
    assert not pauses.pays(4, 32, 2 * PLAIN)


def test_each_number_of_sequences_is_judged_by_its_own_waits() -> None:
    pauses = Pauses()
    waited(pauses, 100, 0.002, right=0, unknown=32, n=32)
    waited(pauses, 60, 0.0005, right=1, unknown=1, n=1)
    assert pauses.pays(1, 1, PLAIN)
    assert not pauses.pays(32, 32, PLAIN)


def test_what_does_not_pay_is_tried_again_for_little_of_the_time() -> None:
    pauses = Pauses()
    waited(pauses, 100, 0.001, right=0, unknown=1, n=1)
    tried, steps = 0, 10_000
    for _ in range(steps):
        pauses.begin()
        pauses.passed(PLAIN)
        if pauses.pays(1, 1, PLAIN):
            pauses.waited(1, 1, 0.001)
            tried += 1
    assert 0.0015 < tried * 0.001 / (steps * PLAIN) < 0.0025


def test_text_that_turns_predictable_is_found_again() -> None:
    pauses = Pauses()
    waited(pauses, 100, 0.0005, right=0, unknown=1, n=1)
    for _ in range(6000):
        pauses.begin()
        pauses.passed(PLAIN)
        if pauses.pays(1, 1, PLAIN):
            pauses.waited(1, 1, 0.0005)
            pauses.verified(1, 1.0, waited=True)
    assert pauses.pays(1, 1, PLAIN)


@pytest.mark.parametrize("pause", [0.1, 10.0])
def test_one_pause_is_no_habit(pause: float) -> None:
    pauses = Pauses()
    waited(pauses, 60, 0.001, right=1, unknown=1, n=1)
    waited(pauses, 1, pause, right=1, unknown=1, n=1)
    assert pauses.pays(1, 1, PLAIN)


def test_a_slow_first_wait_does_not_decide() -> None:
    pauses = Pauses()
    pauses.waited(1, 1, 0.5)
    waited(pauses, 2, 0.001, right=1, unknown=1, n=1)
    assert pauses.pays(1, 1, PLAIN)


def held(pauses: Pauses, times: int, seconds: float, accepted: int, known: int, n: int) -> None:
    for _ in range(times):
        pauses.begin()
        for _ in range(accepted):
            pauses.verified(1, 1.0, waited=False)
        pauses.held(known, n, seconds)


def test_one_block_holds_one_sequence_and_not_many() -> None:
    pauses = Pauses()
    held(pauses, 60, 0.0003, accepted=1, known=1, n=1)
    held(pauses, 60, 0.0008, accepted=8, known=8, n=32)
    assert pauses.holds(1, 1, PLAIN)
    # A token of one of 32 is worth 0.16 ms.
    assert not pauses.holds(1, 32, PLAIN)
    assert not pauses.holds(4, 32, PLAIN)
    assert pauses.holds(8, 32, PLAIN)


def test_blocks_that_are_not_verified_hold_nobody() -> None:
    pauses = Pauses()
    held(pauses, 200, 0.0003, accepted=0, known=4, n=8)
    assert not pauses.holds(4, 8, PLAIN)


def test_what_verifying_costs_is_no_gain() -> None:
    pauses = Pauses()
    for _ in range(200):
        pauses.begin()
        for _ in range(8):
            pauses.verified(1, 0.1, waited=False)
        pauses.held(8, 32, 0.0005)
    # All of it would be worth 1.25 ms; a tenth is left.
    assert not pauses.holds(8, 32, PLAIN)


def test_each_number_of_sequences_is_judged_by_its_own_blocks() -> None:
    pauses = Pauses()
    held(pauses, 200, 0.0003, accepted=0, known=4, n=8)
    held(pauses, 60, 0.0003, accepted=1, known=1, n=1)
    assert pauses.holds(1, 1, PLAIN)
    assert not pauses.holds(4, 8, PLAIN)


def test_what_is_gained_is_what_the_pause_leaves() -> None:
    pauses = Pauses()
    held(pauses, 200, 0.0003, accepted=6, known=2, n=8)
    assert pauses.gained(2, 8, PLAIN, math.inf) == pytest.approx(6 * PLAIN / 8 - 0.0003, rel=0.01)
    # What is only a token late is worth a token.
    assert pauses.gained(2, 8, PLAIN, 1.0) == pytest.approx(2 * PLAIN / 8 - 0.0003, rel=0.01)
    held(pauses, 400, 0.0003, accepted=0, known=2, n=8)
    assert pauses.gained(2, 8, PLAIN, math.inf) == 0.0


def test_steps_without_any_draft_tell_nothing_of_blocks() -> None:
    pauses = Pauses()
    held(pauses, 60, 0.0003, accepted=2, known=2, n=8)
    held(pauses, 200, 0.0003, accepted=0, known=0, n=8)
    assert pauses.holds(2, 8, PLAIN)


def test_what_a_wait_brought_is_not_counted_twice() -> None:
    pauses = Pauses()
    waited(pauses, 60, 0.001, right=1, unknown=1, n=1)
    held(pauses, 400, 0.0001, accepted=0, known=0, n=1)
    assert pauses.pays(1, 1, PLAIN)


def test_holding_that_does_not_pay_is_tried_again_for_little_of_the_time() -> None:
    pauses = Pauses()
    held(pauses, 200, 0.0005, accepted=0, known=2, n=8)
    tried, steps = 0, 10_000
    for _ in range(steps):
        pauses.begin()
        pauses.passed(PLAIN)
        if pauses.holds(2, 8, PLAIN):
            pauses.held(2, 8, 0.0005)
            tried += 1
    assert 0.0015 < tried * 0.0005 / (steps * PLAIN) < 0.0025
