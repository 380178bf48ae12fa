from __future__ import annotations

import pytest

from verifier_service.asking import AskingCost


def test_without_a_step_that_did_not_ask_the_cost_is_the_wait() -> None:
    assert AskingCost().of(1, seconds=0.005, waited=0.002) == 0.002


def test_the_cost_is_what_steps_that_ask_take_more() -> None:
    asking = AskingCost()
    asking.observe_plain(1, 0.001)
    assert asking.of(1, seconds=0.005, waited=0.002) == pytest.approx(0.004)
    assert asking.of(1, seconds=0.0005, waited=0.0001) == 0.0


def test_numbers_of_sequences_are_told_apart_by_powers_of_two() -> None:
    asking = AskingCost()
    asking.observe_plain(1, 0.001)
    asking.observe_plain(8, 0.004)
    assert asking.of(15, seconds=0.006, waited=0.001) == pytest.approx(0.002)
    assert asking.of(16, seconds=0.006, waited=0.001) == 0.001


def test_a_pause_moves_the_average_little_and_a_habit_all_the_way() -> None:
    asking = AskingCost()
    asking.observe_plain(1, 0.001)
    asking.observe_plain(1, 10.0)
    assert asking.of(1, seconds=0.003, waited=0.0) == pytest.approx(0.0017)
    for _ in range(200):
        asking.observe_plain(1, 0.003)
    assert asking.of(1, seconds=0.004, waited=0.0) == pytest.approx(0.001, rel=1e-3)
