"""How counts of rows lean on each other."""

from __future__ import annotations

import numpy as np
import pytest

from verifier_service.cost_pooling import FORGOTTEN, Pooling

KNOTS = np.arange(1.0, 33.0)


def known(**observed: float) -> np.ndarray:
    values = np.zeros(len(KNOTS))
    for rows, count in observed.items():
        values[int(rows[1:]) - 1] = count
    return values


def test_what_is_known_well_stands_for_itself() -> None:
    own = np.ones(len(KNOTS))
    own[7] = 1.5
    pooled = Pooling(KNOTS).factors(known(r1=50.0, r8=50.0, r32=50.0), own)
    assert pooled[7] == pytest.approx(1.5, abs=0.02)
    assert pooled[0] == pytest.approx(1.0, abs=0.02)


def test_what_is_hardly_known_leans_on_its_neighbours() -> None:
    own = np.ones(len(KNOTS))
    own[7] = 2.0
    alone = Pooling(KNOTS).factors(known(r8=0.1), own)
    beside = Pooling(KNOTS).factors(known(r7=50.0, r8=0.1, r9=50.0), own)
    assert alone[7] == pytest.approx(2.0)
    assert beside[7] < 1.2


def test_what_was_not_measured_lies_between_what_was() -> None:
    own = np.where(KNOTS < 16, 1.0, 2.0)
    pooled = Pooling(KNOTS).factors(known(r10=50.0, r20=50.0), own)
    assert 1.0 < pooled[14] < 2.0
    assert list(pooled[:10]) == [pooled[9]] * 10


def test_counts_come_and_go_as_if_each_look_were_the_first() -> None:
    """What is kept from one look to the next follows the counts that are known."""
    rng = np.random.default_rng(3)
    pooling = Pooling(KNOTS)
    observations = np.zeros(len(KNOTS))
    observations[4] = 1.0
    for _ in range(60):
        observations *= 0.7
        observations[int(rng.integers(len(KNOTS)))] += 1.0
        own = rng.uniform(0.8, 1.2, len(KNOTS))
        assert (observations > FORGOTTEN).any()
        fresh = Pooling(KNOTS).factors(observations, own)
        assert pooling.factors(observations, own).tolist() == fresh.tolist()


def test_a_derived_one_is_another() -> None:
    pooling = Pooling(KNOTS)
    own = np.full(len(KNOTS), 1.25)
    pooling.factors(known(r3=9.0), own)
    other = pooling.derived()
    assert other.factors(known(r5=9.0), own)[4] == pytest.approx(1.25)
    assert pooling.factors(known(r3=9.0), own)[2] == pytest.approx(1.25)
