"""The controller on synthetic loads: never slower than plain, near the best fixed K where steady.

All policies meet the same drafts and the same noise, so a comparison has no luck of its own.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.verifier_service.simulation.loads import (
    CPU,
    GPU,
    LINEAR,
    SMALL_GPU,
    TABLES,
    Acceptance,
    K,
    fading,
    load,
    mixture,
    phases,
    steady,
    together,
)
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.simulation.policies import Load, compare

# Tokens of each answer, by batch: enough steps to learn in, few enough to be quick.
TOKENS = {1: 300, 8: 100, 32: 80, 128: 50}
# Fixed Ks to be compared with: the gain hardly differs between them.
FIXED = {1: (1, 2, 4, 8), 8: (1, 2, 4, 8), 32: (1, 2, 4), 128: (1, 4)}
CHANGING = {"phases": phases(40), "together": together(40), "fading": fading, "mixture": mixture}


def check(made: Load, batch: int, *, steady: bool = True) -> None:
    found = compare(made, fixed=FIXED[batch] if steady else ())
    assert found.against_plain >= 0.98
    if steady:
        assert found.against_best >= 0.95


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.5, 0.7, 0.95])
def test_steady_text(chance: float, table: str, batch: int) -> None:
    check(load(steady(chance), TABLES[table], batch=batch, tokens=TOKENS[batch]), batch)


@pytest.mark.parametrize("table", ["gpu", "small-gpu"])
@pytest.mark.parametrize("chance", [0.0, 0.5, 0.9])
def test_steady_text_of_128_sequences(chance: float, table: str) -> None:
    check(load(steady(chance), TABLES[table], batch=128, tokens=TOKENS[128]), 128)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("text", CHANGING)
def test_text_that_changes(text: str, table: str, batch: int) -> None:
    made = load(CHANGING[text], TABLES[table], batch=batch, tokens=TOKENS[batch])
    check(made, batch, steady=False)


@pytest.mark.parametrize("wait_ms", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("chance", [0.0, 0.4, 0.9])
def test_waits_for_drafts(chance: float, batch: int, wait_ms: float) -> None:
    made = load(steady(chance), GPU, batch=batch, tokens=TOKENS[batch], wait=wait_ms / 1e3)
    check(made, batch)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("chance", [0.5, 0.6, 0.65, 0.7, 0.75])
def test_32_sequences_about_where_drafts_begin_to_pay(chance: float, seed: int) -> None:
    """Where a gain is small, the noise of what is believed of costs must not decide."""
    check(load(steady(chance), CPU, batch=32, tokens=TOKENS[32], seed=seed), 32)


@pytest.mark.parametrize("chance", [0.5, 0.6, 0.65])
def test_one_sequence_just_below_where_drafts_begin_to_pay(chance: float) -> None:
    """Two right drafts in a row are luck there, and following luck loses."""
    check(load(steady(chance), LINEAR, batch=1, tokens=300), 1)


def test_drafts_beyond_what_was_profiled_are_priced_by_what_they_take() -> None:
    """The profile ends at 33 rows, where this device is still flat: the drafts of 32 are dearer.

    They pay all the same, and one wrong look must not put them out of reach for good.
    """
    made = load(steady(0.8), SMALL_GPU, batch=32, tokens=100)
    found = compare(made, fixed=(2,))
    assert found.against_plain >= 1.15


@pytest.mark.parametrize(
    ("acceptance", "table"), [(steady(0.6), "gpu"), (phases(20), "cpu"), (mixture, "small-gpu")]
)
def test_short_answers_that_come_and_go(acceptance: Acceptance, table: str) -> None:
    made = load(acceptance, TABLES[table], batch=8, tokens=40, sequences=80)
    check(made, 8, steady=False)


@pytest.mark.parametrize("table", ["gpu", "small-gpu", "cpu"])
def test_a_sampled_load(table: str) -> None:
    check(load(steady(0.4), TABLES[table], batch=8, tokens=100, sampled=True), 8)


def test_good_drafts_are_worth_their_gain() -> None:
    found = compare(load(steady(0.9), GPU, batch=1, tokens=300), fixed=())
    assert found.against_plain >= 4.5


def test_no_flapping_where_the_gain_crosses_zero() -> None:
    """Break-even is 2/3 there; the state has two thresholds, and probes do not switch it."""
    made = load(steady(0.66), LINEAR, batch=1, tokens=300)
    states: list[bool] = []

    class Watched(Controller):
        def state(self) -> str:
            states.append(super().state() == "on")
            return super().state()

    header = made.header
    made.run(Watched(K, CostTable.from_profile(header.profile, header.context)))
    assert len(states) > 1000
    assert sum(a != b for a, b in pairwise(states)) <= 24


def test_a_crowd_that_comes_and_goes() -> None:
    """Drafts pay for four sequences and not for 128: what was learnt of one spoils not the other.

    One controller sees both, there and back, which is where a fixed threshold collapsed.
    """
    few = load(steady(0.6), SMALL_GPU, batch=4, tokens=100)
    many = load(steady(0.3), SMALL_GPU, batch=64, tokens=40)
    header = few.header
    one = Controller(K, CostTable.from_profile(header.profile, header.context))
    for made in (few, many, few, many, few):
        run = made.run(one)
        plain = made.run(Controller(0, CostTable.from_profile(header.profile)))
        assert run.rate >= 0.98 * plain.rate
    assert run.rate >= 1.6 * plain.rate
