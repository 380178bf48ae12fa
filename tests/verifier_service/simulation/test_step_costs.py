"""Costs fitted from a recording, and the recording's own noise and asking."""

from __future__ import annotations

import numpy as np
import pytest

from verifier_service.simulation.recording import Header, RecordedRound, RecordedStep
from verifier_service.simulation.step_costs import fit_costs

HEADER = Header(8, {1: 0.020, 9: 0.028, 33: 0.052}, 100)


def true(rows: int, sequences: int) -> float:
    return 0.019 + 0.001 * rows + 0.002 * (sequences - 1)


def step(
    rows: int, sequences: int = 1, *, factor: float = 1.0, ask: int = 0, around: float = 0.0005
) -> RecordedStep:
    rounds = tuple(RecordedRound(i, 100, 8, ask, True, 1) for i in range(sequences))
    seconds = true(rows, sequences) * factor
    return RecordedStep(seconds, around, 0.0, rows, 100, 0, rounds)


def test_measured_counts_are_priced_at_their_medians() -> None:
    steps = [step(rows, factor=f) for rows in (1, 3, 5, 9) for f in (0.95, 1.0, 1.05, 8.0, 1.0)]
    costs = fit_costs(HEADER, steps)
    for rows in (1, 2, 3, 4, 5, 9):
        assert costs.seconds(rows, 1, 100) == pytest.approx(true(rows, 1) + 0.0005, rel=0.02)


def test_each_number_of_sequences_has_its_curve() -> None:
    steps = [step(rows, n) for n in (1, 8) for rows in (n, 4 * n, 8 * n) for _ in range(5)]
    costs = fit_costs(HEADER, steps)
    assert costs.seconds(32, 8, 100) == pytest.approx(true(32, 8) + 0.0005, rel=0.02)
    assert costs.seconds(8, 1, 100) == pytest.approx(true(8, 1) + 0.0005, rel=0.02)
    # Numbers that did not run are priced as the nearest that did.
    assert costs.seconds(16, 16, 100) == pytest.approx(costs.seconds(16, 8, 100))


def test_the_profile_stands_in_scaled_where_nothing_was_measured() -> None:
    slow = [step(1, factor=2.0) for _ in range(10)]
    costs = fit_costs(HEADER, slow)
    assert costs.seconds(9, 1, 100) == pytest.approx(2 * 0.028, rel=0.05)
    assert costs.seconds(57, 1, 100) == pytest.approx(2 * 0.076, rel=0.05)


def test_a_recording_without_a_decoding_step_is_priced_by_its_profile() -> None:
    costs = fit_costs(HEADER, [])
    assert costs.seconds(9, 1, 100) == pytest.approx(0.028)


def test_more_rows_never_cost_less() -> None:
    rng = np.random.default_rng(3)
    steps = [step(int(n), factor=float(rng.lognormal(0, 0.3))) for n in rng.integers(1, 20, 80)]
    costs = fit_costs(HEADER, steps)
    prices = [costs.seconds(rows, 1, 100) for rows in range(1, 80)]
    assert prices == sorted(prices)


def test_attention_follows_the_header() -> None:
    header = Header(8, HEADER.profile, 100, (1e-5, 1e-6))
    costs = fit_costs(header, [step(5) for _ in range(5)])
    longer = costs.seconds(5, 1, 1100) - costs.seconds(5, 1, 100)
    assert longer == pytest.approx(1000 * (1e-5 + 5e-6))


def test_asking_is_what_asking_steps_take_beyond_the_others() -> None:
    steps = [step(1) for _ in range(5)] + [step(1, ask=8, around=0.0025) for _ in range(3)]
    costs = fit_costs(HEADER, steps)
    assert costs.asking == pytest.approx((0.002, 0.002, 0.002))


def test_noise_is_told_in_the_steps_order_and_bounded() -> None:
    steps = [step(1) for _ in range(9)] + [step(1, factor=50.0)]
    noise = fit_costs(HEADER, steps).noise
    assert noise[:9] == pytest.approx([1.0] * 9)
    assert noise[9] == 3.0


def test_steps_with_prefill_price_nothing() -> None:
    prefill = RecordedStep(3.0, 0.0, 0.0, 200, 100, 199, step(1).rounds)
    costs = fit_costs(HEADER, [prefill, *(step(1) for _ in range(4))])
    assert costs.seconds(1, 1, 100) == pytest.approx(0.0205)
    assert len(costs.noise) == 4
