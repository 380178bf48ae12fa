"""What a median and its interval make of turns whose cost is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from benchmarks.processor_time import VERIFIER, VERIFIER_BESIDES
from benchmarks.telemetry_figures import (
    ALL_BUT_MODEL,
    BAR,
    MOST_FOREIGN,
    Estimate,
    as_cost,
    level_of,
)
from benchmarks.telemetry_turns import Turn
from tests.benchmarks.turns import quad, turn


def noisy(cost: float, quads: int, spread: float, seed: int = 0) -> list[Turn]:
    """Quads whose traced windows are slower by `cost`, on a machine with so much noise."""
    draw = random.Random(seed)
    turns = []
    for number in range(quads):
        for mode in (True, False, False, True):
            # Some windows run at half the speed, as another program makes them.
            speeds = [
                40 * draw.gauss(1.0, spread) * (0.5 if draw.random() < 0.1 else 1.0)
                for _ in range(4)
            ]
            turns.append(turn(mode, [s * (1 - cost * mode) for s in speeds], quad=number))
    return turns


def test_a_median_of_all_pairs_and_an_interval_around_it() -> None:
    groups = [[n / 10, n / 10 + 0.01] for n in range(11)]
    found = Estimate.of(groups)
    assert found is not None
    assert found.value == pytest.approx(0.505)
    assert (found.count, found.groups) == (22, 11)
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low < 0.35 < 0.65 < found.high <= 1.01
    assert Estimate.of(groups) == found


def test_few_groups_have_no_interval_and_empty_ones_do_not_count() -> None:
    assert Estimate.of([[1.0], [], [3.0]]) == Estimate(2.0, None, None, 2, 2)
    assert Estimate.of([[], []]) is None


def test_a_group_is_drawn_as_a_whole() -> None:
    """Windows that are alike by turns must not make the interval narrower than their number."""
    alone = Estimate.of([[float(n)] for n in range(9)])
    alike = Estimate.of([[float(n)] * 50 for n in range(9)])
    assert alone is not None
    assert alike is not None
    assert (alike.low, alike.high) == (alone.low, alone.high)


@pytest.mark.parametrize(
    ("cost", "spread", "verdict"),
    [
        (0.001, 0.01, "under 1%"),
        (0.05, 0.01, "over 1%"),
        (0.001, 0.2, "not resolved"),
    ],
)
def test_a_known_cost_is_found(cost: float, spread: float, verdict: str) -> None:
    level = level_of(noisy(cost, 15, spread), 1)
    assert level is not None
    assert level.change is not None
    assert level.change.low is not None
    assert level.change.high is not None
    assert level.verdict == verdict
    assert as_cost(level.change.high) < cost < as_cost(level.change.low)


def test_the_verdict_is_of_the_interval_and_not_of_the_median() -> None:
    level = level_of(noisy(0.0, 2, 0.001), 1)
    assert level is not None
    assert level.verdict == "too few pairs"


def test_disturbed_windows_are_only_among_all_pairs() -> None:
    turns = [
        turn(mode, [50.0], quad=n, foreign=[MOST_FOREIGN * (2 if n == 1 else 1)])
        for n in range(3)
        for mode in (True, False, False, True)
    ]
    level = level_of(turns, 1)
    assert level is not None
    assert level.change is not None
    assert (level.change.count, level.unfiltered.count) == (4, 6)
    assert level.foreign == MOST_FOREIGN


def test_a_machine_without_a_quiet_moment_says_nothing() -> None:
    turns = [turn(mode, [50.0], foreign=[0.9]) for mode in (True, False, False, True)]
    level = level_of(turns, 1)
    assert level is not None
    assert (level.change, level.control, level.verdict) == (None, None, "too few pairs")


def test_each_number_of_clients_is_its_own() -> None:
    turns = [*quad(50.0, 49.0), *quad(400.0, 300.0, number=1, clients=8)]
    one, eight = level_of(turns, 1), level_of(turns, 8)
    assert one is not None
    assert eight is not None
    assert (one.speed, one.traced_speed) == (50.0, 49.0)
    assert (eight.speed, eight.window_s, eight.request_s) == (400.0, 0.25, 0.25 / 8)
    assert as_cost(eight.unfiltered.value) == pytest.approx(0.25)
    assert level_of(turns, 2) is None


def test_processor_time_besides_the_model_is_summed() -> None:
    """The model's own time is in `verifier`, whose other threads are told apart."""
    spent = {"gateway": 3.0, "ngram": 1.0, VERIFIER: 500.0, VERIFIER_BESIDES: 0.5}
    nothing = dict.fromkeys(spent, 0.0)
    turns = [
        replace(turn(mode, [50.0]), processor_ms=spent if mode else nothing)
        for mode in (True, False, False, True)
    ]
    level = level_of(turns, 1)
    assert level is not None
    assert level.processor_ms[ALL_BUT_MODEL].value == 4.5
    assert level.processor_ms[VERIFIER].value == 500.0


def test_the_bar_is_one_percent() -> None:
    assert as_cost(math.log1p(-BAR)) == pytest.approx(0.01)
