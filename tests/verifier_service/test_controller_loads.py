"""The controller on simulated loads: never slower than plain, near the best fixed K, soon back."""

from itertools import pairwise

import pytest

from tests.verifier_service.controller_simulator import (
    COSTS,
    Cost,
    K,
    Text,
    best_fixed,
    cpu,
    expected_rate,
    flat,
    linear,
    simulate,
    steady,
)
from verifier_service.controller import Controller
from verifier_service.costs import CostTable

# The longest runs are the smallest batches: learning is by rounds.
STEPS = {1: 800, 8: 500, 32: 300, 128: 250}


def mixture(_step: int, sequence: int) -> dict[str, Text]:
    return {"ngram": Text(0.9 if sequence % 2 else 0.0)}


def phases(step: int, _sequence: int) -> dict[str, Text]:
    return {"ngram": Text(0.9 if step // 150 % 2 else 0.0)}


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.95])
def test_steady_loads(acceptance: float, cost: Cost, batch: int) -> None:
    load = steady(acceptance)
    rate = simulate(load, cost, batch=batch, steps=STEPS[batch]).rate()
    assert rate >= 0.98 * expected_rate(load, cost, batch=batch, drafts=0)
    assert rate >= 0.95 * best_fixed(load, cost, batch=batch)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("acceptance", [0.0, 0.9])
def test_a_large_batch(acceptance: float, cost: Cost) -> None:
    load = steady(acceptance)
    rate = simulate(load, cost, batch=128, steps=STEPS[128]).rate()
    assert rate >= 0.98 * expected_rate(load, cost, batch=128, drafts=0)
    assert rate >= 0.95 * best_fixed(load, cost, batch=128)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_sequences_of_different_kinds(cost: Cost, batch: int) -> None:
    rate = simulate(mixture, cost, batch=batch, steps=STEPS[batch]).rate()
    assert rate >= 0.98 * expected_rate(mixture, cost, batch=batch, drafts=0)
    assert rate >= 0.95 * best_fixed(mixture, cost, batch=batch)


@pytest.mark.parametrize(("cost", "batch"), [(flat, 32), (cpu, 8)])
def test_drafts_go_to_the_sequences_that_accept_them(cost: Cost, batch: int) -> None:
    rate = simulate(mixture, cost, batch=batch, steps=300).rate()
    assert rate >= 1.1 * best_fixed(mixture, cost, batch=batch)


@pytest.mark.parametrize(("cost", "batch"), [(flat, 1), (cpu, 1), (flat, 8), (cpu, 8)])
def test_text_that_changes_its_kind(cost: Cost, batch: int) -> None:
    result = simulate(phases, cost, batch=batch, steps=900)
    assert result.rate() >= 0.98 * expected_rate(phases, cost, batch=batch, drafts=0)
    repetitive = steady(0.9)
    for start in (150, 450, 750):
        back = result.rate(start + 60, start + 150)
        assert back >= 0.8 * best_fixed(repetitive, cost, batch=batch)
    for start in (0, 300, 600):
        plain = expected_rate(steady(0.0), cost, batch=batch, drafts=0)
        assert result.rate(start + 50, start + 150) >= 0.95 * plain


def test_no_flapping_at_break_even() -> None:
    # At 2 ms a row of 3 ms a plain step, drafts accepted two times in three just pay.
    result = simulate(steady(0.667), linear, batch=1, steps=1500)
    states = [state == "on" for state in result.states[300:]]
    switches = sum(a != b for a, b in pairwise(states))
    assert switches <= 24
    assert result.rate() >= 0.98 * expected_rate(steady(0.0), linear, batch=1, drafts=0)


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize(("cost", "batch"), [(flat, 8), (cpu, 2)])
def test_each_sequence_gets_its_better_proposer(cost: Cost, batch: int, shadow: bool) -> None:
    def load(_step: int, sequence: int) -> dict[str, Text]:
        good, bad = Text(0.85), Text(0.2)
        return {"a": good, "b": bad} if sequence % 2 else {"a": bad, "b": good}

    result = simulate(load, cost, batch=batch, steps=300, shadow=shadow)
    right = sum(n for (row, name), n in result.used.items() if (name == "a") == (row % 2 == 1))
    assert right >= 0.95 * sum(result.used.values())
    assert result.rate() >= 0.9 * best_fixed(steady(0.85), cost, batch=batch)


def test_a_better_proposer_that_comes_second_is_found() -> None:
    def load(_step: int, _sequence: int) -> dict[str, Text]:
        return {"a": Text(0.5), "b": Text(0.9)}

    result = simulate(load, cpu, batch=2, steps=300, lifetime=60)
    better = sum(n for (_, name), n in result.used.items() if name == "b")
    assert better >= 0.9 * sum(result.used.values())


@pytest.mark.parametrize("wait", [0.0005, 0.002, 0.01])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_waits_for_drafts_are_paid_only_where_they_pay(acceptance: float, wait: float) -> None:
    load = steady(acceptance)
    rate = simulate(load, cpu, batch=1, steps=800, wait=lambda _step: wait).rate()
    assert rate >= 0.98 * expected_rate(load, cpu, batch=1, drafts=0)
    assert rate >= 0.95 * best_fixed(load, cpu, batch=1, wait=wait)


def test_a_proposer_that_becomes_slow_and_recovers() -> None:
    result = simulate(
        steady(0.6),
        cpu,
        batch=1,
        steps=1000,
        wait=lambda step: 0.025 if 300 <= step < 600 else 0.0,
    )
    assert result.rate(350, 600) >= 0.95 * expected_rate(steady(0.6), cpu, batch=1, drafts=0)
    assert result.rate(850) >= 0.9 * best_fixed(steady(0.6), cpu, batch=1)


def test_rare_offers_still_pay() -> None:
    load = steady(0.9, offered=0.05)
    result = simulate(load, cpu, batch=1, steps=1000)
    assert result.rate() >= 1.12 * 50.0


@pytest.mark.parametrize("acceptance", [0.0, 0.9])
def test_pauses_do_not_mislead(acceptance: float) -> None:
    load = steady(acceptance)
    adaptive = simulate(load, cpu, batch=8, steps=500, pauses=0.02).rate()
    plain = simulate(
        load,
        cpu,
        batch=8,
        steps=500,
        pauses=0.02,
        controller=Controller(0, CostTable.from_profile({1: 0.02})),
    ).rate()
    best = best_fixed(load, cpu, batch=8) / expected_rate(load, cpu, batch=8, drafts=0)
    assert adaptive >= 0.95 * best * plain


@pytest.mark.parametrize("batch", [1, 8])
def test_a_wrong_profile_is_corrected(batch: int) -> None:
    profile = {rows: flat(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)}
    control = Controller(K, CostTable.from_profile(profile))
    result = simulate(steady(0.0), linear, batch=batch, steps=400, controller=control)
    assert result.rate(200) >= 0.98 * expected_rate(steady(0.0), linear, batch=batch, drafts=0)


def test_runs_repeat_exactly() -> None:
    first = simulate(mixture, cpu, batch=4, steps=100)
    again = simulate(mixture, cpu, batch=4, steps=100)
    assert first.drafted == again.drafted
    assert first.tokens == again.tokens
