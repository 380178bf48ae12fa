"""The scan that picks a step's drafts, against trying every set of prefixes."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier_service.admission import Admission, admit, scan_few, scan_many
from verifier_service.costs import CostTable


def scan(
    survivals: list[list[float]],
    costs: CostTable,
    *,
    sequences: int | None = None,
    others: int = 0,
    waited: float = 0.0,
    most: int = 100,
) -> Admission:
    return admit(
        survivals,
        costs,
        sequences=len(survivals) if sequences is None else sequences,
        others=others,
        context=0,
        waited=waited,
        most=most,
    )


def best_by_trying(survivals: list[list[float]], costs: CostTable) -> float:
    rows = len(survivals)
    best = 0.0
    for counts in product(*(range(len(row) + 1) for row in survivals)):
        emitted = rows + sum(sum(row[:n]) for row, n in zip(survivals, counts, strict=True))
        best = max(best, emitted / costs.seconds(rows + sum(counts)))
    return best


chains = st.lists(st.floats(0.01, 0.99), min_size=3, max_size=3).map(
    lambda row: np.cumprod(row).tolist()
)


@given(
    st.lists(chains, min_size=1, max_size=4),
    st.lists(st.floats(0.001, 0.05), min_size=16, max_size=16),
)
def test_no_other_set_of_prefixes_emits_more_a_second(
    survivals: list[list[float]], rises: list[float]
) -> None:
    seconds = np.cumsum(rises)
    costs = CostTable.from_profile({n + 1: float(seconds[n]) for n in range(16)})
    best = scan(survivals, costs)
    emitted = len(survivals) + sum(
        sum(row[:n]) for row, n in zip(survivals, best.counts, strict=True)
    )
    rate = emitted / costs.seconds(len(survivals) + best.drafted)
    assert rate == pytest.approx(best_by_trying(survivals, costs))
    assert rate == pytest.approx(best.rate)


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=5), max_size=9),
    st.floats(0.0, 0.01),
    st.integers(1, 9),
    st.integers(0, 40),
    st.booleans(),
)
def test_few_drafts_and_many_are_scanned_to_the_same_bits(
    survivals: list[list[float]], waited: float, sequences: int, most: int, shared: bool
) -> None:
    """Two ways to one answer: which is taken depends on how many there are."""
    costs = CostTable.from_profile({1: 0.0048, 5: 0.0049, 32: 0.0071})
    count = min(sum(map(len, survivals)), most)
    alone = costs.curve(sequences, count + 1)
    step = costs.curve(sequences + 7, count + 1) if shared else alone
    few = scan_few(survivals, sequences, step, alone, waited)
    assert few == scan_many(survivals, sequences, step, alone, waited)


def test_free_rows_take_every_draft_and_dear_rows_none() -> None:
    survivals = [[0.5, 0.25, 0.1]] * 4
    assert scan(survivals, CostTable.from_profile({1: 0.01, 64: 0.01})).counts == [3] * 4
    dear = scan(survivals, CostTable.from_profile({1: 0.01, 64: 0.64}))
    assert dear.counts == [0] * 4
    assert dear.gain == 0.0


def test_slots_compete_across_sequences() -> None:
    costs = CostTable.from_profile({2: 0.020, 8: 0.050})
    best = scan([[0.9, 0.8, 0.7], [0.1, 0.01, 0.0]], costs)
    assert best.counts == [3, 0]


def test_a_block_of_rows_is_filled_though_its_first_row_does_not_pay() -> None:
    costs = CostTable.from_profile({1: 0.020, 2: 0.035, 5: 0.035, 6: 0.06})
    assert scan([[0.6, 0.5, 0.45, 0.4, 0.1]], costs).counts == [4]


def test_the_budget_for_drafts_is_kept_by_the_best() -> None:
    costs = CostTable.from_profile({1: 0.01, 64: 0.01})
    best = scan([[0.9, 0.8, 0.1], [0.5, 0.2, 0.1]], costs, most=3)
    assert best.counts == [2, 1]
    assert scan([[0.9, 0.8, 0.1]], costs, most=0).counts == [0]


def test_gain_is_tokens_per_second_against_the_plain_step() -> None:
    costs = CostTable.from_profile({1: 0.020, 2: 0.022})
    best = scan([[0.5]], costs)
    assert best.gain == pytest.approx(1.5 / 1.1 - 1.0)
    assert best.net_gain == pytest.approx(best.gain)


def test_a_wait_makes_drafts_worth_more_but_asking_worth_less() -> None:
    costs = CostTable.from_profile({1: 0.020, 2: 0.022})
    best = scan([[0.5]], costs, waited=0.020)
    assert best.gain > 1.5 / 1.1 - 1.0
    assert best.net_gain == pytest.approx(1.5 / 0.042 * 0.020 - 1.0)


def test_sharing_a_step_with_prefill_makes_no_draft_cheaper() -> None:
    costs = CostTable.from_profile({1: 0.003, 600: 1.2})
    assert scan([[0.5, 0.2, 0.1]], costs).counts == [0]
    assert scan([[0.5, 0.2, 0.1]], costs, others=500).counts == [0]
    flat = CostTable.from_profile({1: 0.02, 600: 0.0201})
    assert scan([[0.5, 0.2, 0.1]], flat, others=500).counts == [3]


def test_sequences_without_a_draft_count_as_emitting() -> None:
    costs = CostTable.from_profile({1: 0.02, 2: 0.021, 4: 0.025, 5: 0.055, 6: 0.056})
    assert scan([[0.9]], costs, sequences=1).counts == [1]
    assert scan([[0.9]], costs, sequences=4).counts == [0]


def test_no_rows_is_a_plain_step() -> None:
    best = admit(
        [],
        CostTable.from_profile({1: 0.02}),
        sequences=2,
        others=0,
        context=0,
        waited=0.0,
        most=8,
    )
    assert best.counts == []
    assert best.plain_seconds == pytest.approx(0.04)
