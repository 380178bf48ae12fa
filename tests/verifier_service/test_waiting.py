"""When an answer that look-ahead has not told is worth a wait."""

import pytest

from verifier_service.waiting import Waiting

PLAIN = 0.005


def waited(waiting: Waiting, times: int, seconds: float, right: int, unknown: int, n: int) -> None:
    for _ in range(times):
        waiting.waited(unknown, n, seconds)
        for _ in range(right):
            waiting.right()


def test_waits_are_tried_before_they_are_judged() -> None:
    waiting = Waiting()
    for _ in range(3):
        assert waiting.pays(1, 8, PLAIN)
        waiting.waited(1, 8, 0.010)
    assert not waiting.pays(1, 8, PLAIN)


def test_one_sequence_waits_for_answers_that_are_often_right() -> None:
    waiting = Waiting()
    waited(waiting, 60, 0.001, right=1, unknown=1, n=1)
    assert waiting.pays(1, 1, PLAIN)


def test_answers_that_are_never_right_are_not_waited_for() -> None:
    waiting = Waiting()
    waited(waiting, 100, 0.001, right=0, unknown=1, n=1)
    assert not waiting.pays(1, 1, PLAIN)


def test_a_few_of_many_do_not_keep_all_waiting() -> None:
    waiting = Waiting()
    waited(waiting, 60, 0.002, right=8, unknown=32, n=32)
    # A token of one of 32 is worth 0.16 ms, a fourth of them are right: 32 gain 1.25 ms.
    assert not waiting.pays(32, 32, PLAIN)
    assert waiting.pays(32, 32, 2 * PLAIN)
    assert not waiting.pays(4, 32, 2 * PLAIN)


def test_each_number_of_sequences_is_judged_by_its_own_waits() -> None:
    waiting = Waiting()
    waited(waiting, 100, 0.002, right=0, unknown=32, n=32)
    waited(waiting, 60, 0.0005, right=1, unknown=1, n=1)
    assert waiting.pays(1, 1, PLAIN)
    assert not waiting.pays(32, 32, PLAIN)


def test_what_does_not_pay_is_tried_again_for_little_of_the_time() -> None:
    waiting = Waiting()
    waited(waiting, 100, 0.001, right=0, unknown=1, n=1)
    tried, steps = 0, 10_000
    for _ in range(steps):
        waiting.passed(PLAIN)
        if waiting.pays(1, 1, PLAIN):
            waiting.waited(1, 1, 0.001)
            tried += 1
    assert 0.0015 < tried * 0.001 / (steps * PLAIN) < 0.0025


def test_text_that_turns_predictable_is_found_again() -> None:
    waiting = Waiting()
    waited(waiting, 100, 0.0005, right=0, unknown=1, n=1)
    for _ in range(6000):
        waiting.passed(PLAIN)
        if waiting.pays(1, 1, PLAIN):
            waiting.waited(1, 1, 0.0005)
            waiting.right()
    assert waiting.pays(1, 1, PLAIN)


@pytest.mark.parametrize("pause", [0.1, 10.0])
def test_one_pause_is_no_habit(pause: float) -> None:
    waiting = Waiting()
    waited(waiting, 60, 0.001, right=1, unknown=1, n=1)
    waited(waiting, 1, pause, right=1, unknown=1, n=1)
    assert waiting.pays(1, 1, PLAIN)


def test_a_slow_first_wait_does_not_decide() -> None:
    waiting = Waiting()
    waiting.waited(1, 1, 0.5)
    waited(waiting, 2, 0.001, right=1, unknown=1, n=1)
    assert waiting.pays(1, 1, PLAIN)
