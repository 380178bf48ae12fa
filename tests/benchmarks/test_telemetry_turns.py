"""Which turns are compared with which."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import islice

import pytest

from benchmarks.telemetry_turns import Quad, Turn, orders, quads_of
from tests.benchmarks.turns import quad, turn


def test_neighbours_are_compared_traced_over_untraced_whoever_began() -> None:
    for first in (True, False):
        halves = Quad(tuple(quad(50.0, 49.0, first=first))).neighbours(1.0)
        assert halves == [[pytest.approx(math.log(0.98))]] * 2


def test_what_drifts_evenly_cancels() -> None:
    speeds = (100.0, 90.0, 81.0, 72.9)
    modes = (False, True, True, False)
    turns = [turn(mode, [speed]) for mode, speed in zip(modes, speeds, strict=True)]
    (first,), (second,) = Quad(tuple(turns)).neighbours(1.0)
    assert first == pytest.approx(math.log(0.9))
    assert first + second == pytest.approx(0.0)
    assert Quad(tuple(turns)).same_mode(1.0) == [pytest.approx(math.log(0.9))]


def test_a_pair_that_other_programs_disturbed_is_left_out() -> None:
    turns = (
        turn(True, [10.0, 20.0], foreign=[0.01, 0.06]),
        turn(False, [10.0, 10.0]),
        turn(False, [10.0, 10.0], foreign=[0.5, 0.0]),
        turn(True, [10.0, 40.0]),
    )
    assert Quad(turns).neighbours(0.05) == [[0.0], [pytest.approx(math.log(4))]]
    assert Quad(turns).same_mode(0.05) == [0.0]
    assert [len(half) for half in Quad(turns).neighbours(math.inf)] == [2, 2]


@pytest.mark.parametrize(
    "modes", [(True, False, True, False), (True, True, True, True), (True, False, False)]
)
def test_other_orders_are_no_quad(modes: tuple[bool, ...]) -> None:
    with pytest.raises(ValueError, match="no ABBA"):
        Quad(tuple(turn(mode, [1.0]) for mode in modes))


def test_both_modes_begin_as_often_and_the_seed_says_which() -> None:
    drawn = list(islice(orders(3), 40))
    assert all(order in ((True, False, False, True), (False, True, True, False)) for order in drawn)
    pairs = [{a[0], b[0]} for a, b in zip(drawn[::2], drawn[1::2], strict=True)]
    assert pairs == [{True, False}] * 20
    assert drawn == list(islice(orders(3), 40)) != list(islice(orders(4), 40))


def test_processor_time_is_of_a_traced_request() -> None:
    spent = [
        turn(mode, [1.0, 1.0], clients=3, gateway_ms=ms)
        for mode, ms in ((True, 30.0), (False, 20.0), (False, 22.0), (True, 36.0))
    ]
    assert Quad(tuple(spent)).processor_ms() == {"gateway": pytest.approx(24 / 12)}


def test_unlike_pairs_are_counted() -> None:
    turns = (
        turn(True, [1.0, 1.0], answers=["a", "b"], rounds=[1, 2]),
        turn(False, [1.0, 1.0], answers=["a", "c"], rounds=[1, 2]),
        turn(False, [1.0, 1.0], answers=["a", "c"], rounds=[3, 4]),
        turn(True, [1.0, 1.0], answers=["a", "c"], rounds=[4, 3]),
    )
    assert (Quad(turns).other_answers(), Quad(turns).other_rounds()) == (1, 2)


def test_quads_are_whole_and_of_one_number_of_clients() -> None:
    turns = [*quad(1.0, 1.0), *quad(1.0, 1.0, number=1, clients=8), *quad(1.0, 1.0, number=2)[:3]]
    assert [found.turns[0].quad for found in quads_of(turns, 1)] == [0]
    assert [found.turns[0].quad for found in quads_of(turns, 8)] == [1]


def test_a_turn_comes_back_from_json() -> None:
    made = turn(True, [1.0, 2.0], clients=8, gateway_ms=3.0)
    document = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(made).items()}
    assert Turn.from_json(document) == made
    assert (made.requests, made.speeds) == (16, (1.0, 2.0))
