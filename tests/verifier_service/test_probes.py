"""Which sequences are probed, and when a step is plain to measure its cost."""

from __future__ import annotations

import pytest

from verifier_service.admission import Admission, admit
from verifier_service.candidates import Candidate
from verifier_service.costs import CostTable
from verifier_service.messages import DraftBlock
from verifier_service.offers import Offers
from verifier_service.plain_steps import plain_due
from verifier_service.probes import Probes

DEAR = CostTable.from_profile({1: 0.010, 2: 0.020, 64: 0.640})
BLOCK = DraftBlock("ngram", 9, (1, 2))


def offers(count: int, chance: float = 0.2) -> Offers:
    return Offers(
        list(range(count)), [BLOCK] * count, [2] * count, [[chance, chance / 4]] * count, True
    )


def admission(given: Offers, costs: CostTable = DEAR) -> Admission:
    return admit(
        given.survivals, costs, sequences=len(given), others=0, context=0, waited=0.0, most=99
    )


def candidates(count: int) -> list[Candidate]:
    return [Candidate(10 + i, [BLOCK], 2, 9, 2) for i in range(count)]


def saved_up(probes: Probes, steps: int = 400) -> None:
    for _ in range(steps):
        probes.budget.earn(0.010)


def test_nothing_is_probed_before_anything_is_saved() -> None:
    probes, given = Probes(), offers(2)
    counts = [0, 0]
    probes.begin_step()
    probes.add(candidates(2), given, counts, admission(given), 99)
    assert counts == [0, 0]
    assert len(probes) == 0


def test_a_probe_is_recorded_once_and_paid_back_by_what_it_emits() -> None:
    probes, given = Probes(), offers(1)
    saved_up(probes)
    counts = [0]
    probes.begin_step()
    probes.add(candidates(1), given, counts, admission(given), 99)
    assert counts == [1]
    assert len(probes) == 1
    left = probes.budget.saved
    assert probes.observe(10, 1)
    assert probes.budget.saved > left
    assert not probes.observe(11, 1)
    probes.begin_step()
    assert not probes.observe(10, 1)


def test_those_that_waited_longest_are_probed_first() -> None:
    probes, given = Probes(), offers(2)
    saved_up(probes)
    for _ in range(500):
        probes.begin_step()
    probes.verified(10)
    counts = [0, 0]
    probes.add(candidates(2), given, counts, admission(given), 1)
    assert counts == [0, 1]
    probes.forget(10)
    probes.forget(99)


def test_a_step_without_drafts_is_plain_already() -> None:
    given = offers(1)
    assert admission(given).counts == [0]
    assert not plain_due(admission(given), DEAR, 1)


def test_a_plain_step_is_due_where_none_was_measured_for_long() -> None:
    costs = CostTable.from_profile({1: 0.010, 64: 0.0101})
    best = admission(offers(1, 0.9), costs)
    assert best.counts == [2]
    due = []
    for _ in range(240):
        due.append(plain_due(best, costs, 1))
        costs.observe(3, 1, 0, costs.seconds(3))
    assert not due[0]
    assert due[-1]


@pytest.mark.parametrize(("most", "counts"), [(0, [0, 0]), (3, [2, 1]), (9, [2, 2])])
def test_without_adapting_the_first_drafts_are_taken(most: int, counts: list[int]) -> None:
    assert offers(2).first(most) == counts
