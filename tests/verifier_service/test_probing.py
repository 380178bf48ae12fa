"""What probing may cost, and whom it tries."""

import pytest

from verifier_service.probing import ProbeBudget, choose_probes


def filled(steps: int = 100, seconds: float = 1.0) -> ProbeBudget:
    budget = ProbeBudget()
    for _ in range(steps):
        budget.earn(seconds)
    return budget


def test_a_failing_probe_costs_at_most_the_share_of_time() -> None:
    budget, spent = ProbeBudget(), 0.0
    for _ in range(5000):
        budget.earn(1.0)
        if budget.affords(0.2):
            budget.spend(0.2)
            budget.record(0, 0.2, 1.0)
            spent += 0.2
    assert 0.004 < spent / 5000 < 0.007


def test_the_share_falls_with_failures_and_returns_with_a_success() -> None:
    budget = ProbeBudget()
    at_first = budget.share
    for _ in range(100):
        budget.record(0, 0.1, 1.0)
    assert budget.share < 0.5 * at_first
    for _ in range(5):
        budget.record(2, 0.1, 1.0)
    assert budget.share == at_first


def test_a_probe_that_pays_is_followed_at_once() -> None:
    budget = filled()
    cost = budget.saved
    budget.spend(cost)
    assert not budget.affords(0.05)
    budget.record(1, cost, 1.0)
    assert budget.affords(0.05)


def test_no_probe_is_too_dear_for_a_full_purse() -> None:
    assert filled().affords(50.0)
    assert not filled(steps=3).affords(50.0)


def flat(drafts: int) -> list[float]:
    return [1.0] * (drafts + 1)


def rising(drafts: int) -> list[float]:
    return [1.0 + 0.05 * n for n in range(drafts + 1)]


def test_an_empty_purse_probes_nothing() -> None:
    assert choose_probes(ProbeBudget(), rising(4), 1.0, [0], [4], [0.01], [0]) == {}


def test_free_rows_make_probes_deep() -> None:
    assert choose_probes(filled(), flat(8), 1.0, [0], [5], [0.01], [0]) == {0: (5, 0.0)}


def test_dear_rows_make_probes_shallow_and_few() -> None:
    budget = filled()
    before = budget.saved
    probes = choose_probes(budget, rising(80), 1.0, [0] * 10, [8] * 10, [0.0] * 10, [0] * 10)
    assert 1 <= len(probes) <= 8
    assert all(drafts == 1 for drafts, _ in probes.values())
    assert before - budget.saved == pytest.approx(0.05 * len(probes))


def test_likely_rows_come_first_then_those_that_waited() -> None:
    steps = rising(80)
    likely = choose_probes(filled(8), steps, 0.01, [0] * 3, [8] * 3, [0.1, 0.4, 0.1], [5, 5, 5])
    assert next(iter(likely)) == 1
    waited = choose_probes(filled(8), steps, 0.01, [0] * 3, [8] * 3, [0.1, 0.1, 0.1], [90, 80, 3])
    assert next(iter(waited)) == 2


def test_rows_that_are_verified_anyway_are_left_alone() -> None:
    assert choose_probes(filled(), flat(8), 1.0, [3, 4], [4, 4], [0.9, 0.9], [0, 0]) == {}


def test_the_steps_room_is_kept() -> None:
    probes = choose_probes(filled(), flat(3), 1.0, [1, 0, 0], [4, 4, 4], [0.5, 0.1, 0.1], [0, 0, 0])
    assert sum(drafts for drafts, _ in probes.values()) == 2
