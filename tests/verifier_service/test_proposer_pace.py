from __future__ import annotations

import pytest

from verifier_service.proposer_pace import WAIT_BOUNDS_MS, Pace, WaitHistogram


def slow_pace() -> Pace:
    pace = Pace(0.010)
    for _ in range(3):
        pace.missed()
    return pace


def test_three_misses_in_a_row_make_it_slow() -> None:
    pace = Pace(0.010)
    pace.missed()
    pace.missed()
    assert not pace.slow
    pace.missed()
    assert pace.slow


def test_an_answer_in_time_forgives_misses() -> None:
    pace = Pace(0.010)
    for _ in range(20):
        pace.missed()
        pace.missed()
        pace.answered(0.009)
    assert not pace.slow


def test_a_late_answer_forgives_nothing() -> None:
    pace = Pace(0.010)
    for _ in range(3):
        pace.missed()
        pace.answered(0.015)
    assert pace.slow


def test_answers_well_inside_the_deadline_bring_it_back() -> None:
    pace = slow_pace()
    pace.answered(0.004)
    pace.answered(0.004)
    assert pace.slow
    pace.answered(0.004)
    assert not pace.slow


def test_answers_just_inside_the_deadline_do_not() -> None:
    pace = slow_pace()
    for _ in range(50):
        pace.answered(0.009)
    assert pace.slow


def test_one_late_answer_starts_the_proof_again() -> None:
    pace = slow_pace()
    pace.answered(0.001)
    pace.answered(0.001)
    pace.answered(0.020)
    pace.answered(0.001)
    pace.answered(0.001)
    assert pace.slow


def proof_length(pace: Pace) -> int:
    for number in range(1, 1000):
        pace.answered(0.001)
        if not pace.slow:
            return number
    raise AssertionError("never came back")


def test_relapses_cost_ever_more_proof() -> None:
    pace = Pace(0.010)
    lengths = []
    for _ in range(7):
        for _ in range(3):
            pace.missed()
        lengths.append(proof_length(pace))
    assert lengths == [3, 6, 12, 24, 48, 96, 96]


def test_steady_answers_restore_trust() -> None:
    pace = slow_pace()
    proof_length(pace)
    for _ in range(64):
        pace.answered(0.001)
    for _ in range(3):
        pace.missed()
    assert proof_length(pace) == 3


def test_histogram_counts_once_and_sums() -> None:
    waits = WaitHistogram()
    for milliseconds in (0.1, 0.3, 1.0, 3.0, 500.0):
        waits.add(milliseconds / 1e3)
    assert waits.count == sum(waits.counts) == 5
    assert waits.sum_ms == pytest.approx(504.4)
    assert waits.counts[0] == 1  # up to 0.25 ms
    assert waits.counts[WAIT_BOUNDS_MS.index(1.0)] == 1
    assert waits.counts[WAIT_BOUNDS_MS.index(5.0)] == 1
    assert waits.counts[-1] == 1


def test_who_answers_at_once_is_not_waited_for_until_the_deadline() -> None:
    pace = Pace(1.0)
    for _ in range(7):
        assert pace.patience_s == 1.0
        pace.answered(0.005)
    pace.answered(0.005)
    assert pace.patience_s == pytest.approx(0.040)


def test_the_longest_of_the_last_answers_counts_and_fades() -> None:
    pace = Pace(1.0)
    for _ in range(20):
        pace.answered(0.003)
    pace.answered(0.060)
    assert pace.patience_s == pytest.approx(0.480)
    for _ in range(200):
        pace.answered(0.003)
    assert pace.patience_s == pytest.approx(0.024)


def test_patience_lies_between_ten_milliseconds_and_the_deadline() -> None:
    quick, slow, short = Pace(1.0), Pace(1.0), Pace(0.004)
    for _ in range(10):
        quick.answered(0.0001)
        slow.answered(0.9)
        short.answered(0.0001)
    assert quick.patience_s == 0.010
    assert slow.patience_s == 1.0
    assert short.patience_s == 0.004
