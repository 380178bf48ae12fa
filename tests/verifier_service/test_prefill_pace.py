"""What prefill costs, learnt from steps."""

from __future__ import annotations

import random

import pytest

from verifier_service.prefill_pace import PrefillPace


def test_the_first_guess_stands_until_something_was_measured() -> None:
    pace = PrefillPace(0.002)
    assert pace.seconds(0, 10) == pytest.approx(0.02)
    assert pace.fits(500, 0.1) == 50


@pytest.mark.parametrize(("a", "b"), [(1e-3, 0.0), (1e-3, 1e-6), (2e-4, 4e-7)])
def test_it_learns_tokens_and_attention(a: float, b: float) -> None:
    rng = random.Random(1)
    pace = PrefillPace(0.05)
    for _ in range(200):
        start, count = rng.randrange(4000), rng.randrange(16, 256)
        noise = 1 + rng.uniform(-0.05, 0.05)
        pace.observe([(start, count)], count * (a + b * (start + count / 2)) * noise)
    for start, count in (0, 64), (1000, 64), (3500, 200):
        true = count * (a + b * (start + count / 2))
        assert pace.seconds(start, count) == pytest.approx(true, rel=0.1)


def test_fits_is_the_inverse_of_seconds() -> None:
    pace = PrefillPace(1e-3)
    for i in range(50):
        pace.observe([(100 * i, 100)], 100 * (1e-3 + 1e-6 * (100 * i + 50)))
    for start in 0, 500, 4000:
        for seconds in 0.01, 0.1, 1.0:
            most = pace.fits(start, seconds)
            assert pace.seconds(start, most) <= seconds * (1 + 1e-9)
            assert pace.seconds(start, most + 1) > seconds
    assert pace.fits(10, 0.0) == pace.fits(10, -1.0) == 0


def test_one_pause_is_not_believed() -> None:
    pace = PrefillPace(1e-3)
    for _ in range(20):
        pace.observe([(0, 100)], 0.1)
    pace.observe([(0, 100)], 60.0)
    assert pace.seconds(0, 100) < 0.12


def test_steps_that_agree_on_a_surprise_are_believed() -> None:
    pace = PrefillPace(1e-3)
    for _ in range(200):
        pace.observe([(0, 100)], 1e-4)
    for _ in range(3):
        pace.observe([(0, 100)], 10.0)
    assert pace.seconds(0, 100) > 0.2


def test_chunks_of_one_step_count_together() -> None:
    pace = PrefillPace(1.0)
    pace.observe([(0, 10), (0, 30)], 0.4)
    assert pace.seconds(0, 100) == pytest.approx(1.0)


def test_nonsense_measurements_leave_it_usable() -> None:
    pace = PrefillPace(1e-3)
    for seconds in (-1.0, 0.0, 0.0, -5.0) * 100:
        pace.observe([(7, 3)], seconds)
    pace.observe([], 1.0)
    assert pace.seconds(0, 10) > 0.0
    assert pace.fits(0, 1e-3) > 0


def test_a_first_guess_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"per_token is 0\.0 seconds"):
        PrefillPace(0.0)
