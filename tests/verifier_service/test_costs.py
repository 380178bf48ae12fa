"""The table of step times: what it keeps of a profile, and what measurements do to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier_service.costs import CostTable

PROFILE = {1: 0.020, 5: 0.024, 8: 0.026, 16: 0.036, 32: 0.050}


def table() -> CostTable:
    return CostTable.from_profile(PROFILE)


def measure(costs: CostTable, rows: int, seconds: float, times: int, context: int = 0) -> None:
    for _ in range(times):
        costs.observe(rows, 1, context, seconds)


def test_profiled_counts_read_back_and_others_are_interpolated() -> None:
    costs = table()
    for rows, seconds in PROFILE.items():
        assert costs.seconds(rows) == pytest.approx(seconds)
    assert costs.seconds(3) == pytest.approx(0.022)
    assert costs.seconds(24) == pytest.approx(0.043)


def test_beyond_the_profile_the_last_slope_goes_on() -> None:
    assert table().seconds(48) == pytest.approx(0.064)


def test_one_profiled_count_is_taken_as_all_work() -> None:
    assert CostTable.from_profile({4: 0.02}).seconds(8) == pytest.approx(0.04)


def test_a_curve_is_what_single_looks_would_give() -> None:
    costs = table()
    curve = costs.curve(2, 60)
    assert curve.tolist() == pytest.approx([costs.seconds(n) for n in range(2, 62)])


def test_noise_that_falls_with_more_rows_is_pooled() -> None:
    costs = CostTable.from_profile({1: 0.022, 2: 0.018, 4: 0.030})
    assert costs.seconds(1) == pytest.approx(0.020)
    assert costs.seconds(2) == pytest.approx(0.020)
    assert costs.seconds(4) == pytest.approx(0.030)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({}, "empty"),
        ({0: 0.1}, "0 query tokens"),
        ({1: 0.0}, "0.0 seconds at 1"),
        ({1: float("nan")}, "nan seconds at 1"),
        ({2: float("inf")}, "inf seconds at 2"),
    ],
)
def test_an_impossible_profile_is_refused(profile: dict[int, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CostTable.from_profile(profile)


def test_measurements_replace_the_profile() -> None:
    costs = table()
    measure(costs, 8, 0.031, 60)
    assert costs.seconds(8) == pytest.approx(0.031, rel=0.01)


def test_a_step_in_the_curve_between_profiled_counts_is_learnt() -> None:
    costs = table()
    for _ in range(60):
        costs.observe(8, 8, 0, 0.026)
        costs.observe(9, 8, 0, 0.031)
    assert costs.seconds(8, 8) == pytest.approx(0.026, rel=0.01)
    assert costs.seconds(9, 8) == pytest.approx(0.031, rel=0.01)


def test_a_busy_machine_slows_counts_that_were_not_measured_too() -> None:
    costs = table()
    measure(costs, 5, 0.048, 60)
    assert costs.seconds(5) == pytest.approx(0.048, rel=0.01)
    assert costs.seconds(1) > 0.022
    assert costs.seconds(32) > 0.055


def test_one_pause_hardly_moves_anything() -> None:
    costs = table()
    measure(costs, 5, 0.024, 20)
    costs.observe(5, 1, 0, 0.5)
    assert costs.seconds(5) == pytest.approx(0.024, rel=0.01)


def test_pauses_now_and_then_leave_the_median() -> None:
    costs = table()
    for step in range(400):
        costs.observe(5, 1, 0, 0.2 if step % 25 == 0 else 0.024)
    assert costs.seconds(5) == pytest.approx(0.024, rel=0.03)


def test_a_lasting_change_is_believed_within_ten_steps() -> None:
    costs = table()
    measure(costs, 5, 0.024, 50)
    measure(costs, 5, 0.072, 10)
    assert costs.seconds(5) > 0.05


def test_context_is_learnt_as_a_second_factor_and_reaches_unmeasured_counts() -> None:
    costs = table()
    rng = np.random.default_rng(3)
    for _ in range(600):
        context = int(rng.integers(100, 4000))
        costs.observe(5, 1, context, 0.024 + 5e-6 * context)
    assert costs.seconds(5, 1, 3000) - costs.seconds(5, 1, 1000) == pytest.approx(0.010, rel=0.1)
    assert costs.seconds(1, 1, 3000) - costs.seconds(1, 1, 1000) > 0.001


def test_without_a_difference_in_context_nothing_is_put_on_it() -> None:
    costs = table()
    rng = np.random.default_rng(4)
    for _ in range(300):
        rows = int(rng.integers(1, 33))
        costs.observe(rows, 1, 500, costs.seconds(rows) * float(rng.normal(1.0, 0.05)))
    assert costs.seconds(5, 1, 5000) == pytest.approx(costs.seconds(5, 1, 500))


def test_counts_beyond_the_profile_become_known() -> None:
    costs = table()
    measure(costs, 100, 0.5, 40)
    assert costs.seconds(100) == pytest.approx(0.5, rel=0.05)
    assert costs.seconds(32) < 0.2


def test_age_counts_observations_since_a_count_was_last_confirmed() -> None:
    costs = table()
    measure(costs, 1, 0.020, 1)
    measure(costs, 5, 0.024, 7)
    assert costs.age(1) == 7
    assert costs.age(5) == 0


def test_drift_tells_what_moved_on_others_evidence() -> None:
    costs = table()
    measure(costs, 1, 0.020, 3)
    assert costs.drift(1) == pytest.approx(0.0, abs=1e-9)
    measure(costs, 8, 0.080, 30)
    assert costs.drift(1) > 0.1
    measure(costs, 1, costs.seconds(1), 1)
    assert costs.drift(1) == pytest.approx(0.0, abs=1e-9)


def test_milliseconds_are_for_people() -> None:
    shown = table().milliseconds()
    assert shown[1] == pytest.approx(20.0)
    assert shown[16] == pytest.approx(36.0)
    assert shown[32] == pytest.approx(50.0)


@given(
    st.dictionaries(st.integers(1, 600), st.floats(1e-4, 1.0), min_size=1, max_size=8),
    st.lists(
        st.tuples(st.integers(1, 900), st.integers(0, 9000), st.floats(1e-5, 5.0)), max_size=40
    ),
)
def test_the_curve_never_falls_and_stays_positive(
    profile: dict[int, float], observed: list[tuple[int, int, float]]
) -> None:
    costs = CostTable.from_profile(profile)
    for rows, context, seconds in observed:
        costs.observe(rows, 1, context, seconds)
    for context in (0, 20000):
        curve = costs.curve(1, 1000, 1, context)
        assert np.isfinite(curve).all()
        assert (curve > 0).all()
        assert (np.diff(curve) >= 0).all()


def test_what_drafts_add_is_told_apart_by_the_number_of_sequences() -> None:
    """One sequence's drafts are cheap, those of eight are not, and neither spoils the other."""
    costs = CostTable.from_profile({1: 0.04, 9: 0.055, 33: 0.1})
    for _ in range(60):
        for rows in (8, 8, 22, 8, 32, 48):
            costs.observe(rows, 8, 0, 0.09 + 0.0033 * (rows - 8))
        for rows in (1, 1, 5, 9):
            costs.observe(rows, 1, 0, 0.04 + 0.002 * (rows - 1))
    assert costs.seconds(9, 8) == pytest.approx(0.0933, rel=0.1)
    assert costs.seconds(22, 8) == pytest.approx(0.136, rel=0.05)
    assert costs.seconds(48, 8) == pytest.approx(0.222, rel=0.05)
    assert costs.seconds(9, 1) == pytest.approx(0.056, rel=0.03)


def test_profiled_attention_tells_of_contexts_that_were_not_measured() -> None:
    costs = CostTable.from_profile({1: 0.04, 33: 0.1}, 256, (6e-6, 5e-7))
    flat = CostTable.from_profile({1: 0.04, 33: 0.1}, 256)
    plain = costs.seconds(8, 8, 6256) - flat.seconds(8, 8, 6256)
    assert plain == pytest.approx(6000 * (6e-6 + 5e-7))
    drafted = costs.seconds(16, 8, 6256) - flat.seconds(16, 8, 6256)
    assert drafted == pytest.approx(6000 * (6e-6 + 2 * 5e-7))
