"""Quantised distributions: exact masses, and draws from exactly these."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.coupling import Stream, hashes, keys, words
from outrider.sparse_q import TOTAL_MASS, quantise, sample, sample_rows


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(1, 50))
def test_masses_are_positive_and_sum_exactly(p: list[float], entries: int) -> None:
    if sum(p) <= 0:
        return
    ids, masses = quantise(p, entries)
    assert int(masses.sum()) == TOTAL_MASS
    assert (masses > 0).all()
    assert len(ids) <= entries
    assert len(set(ids.tolist())) == len(ids)


def test_most_likely_tokens_are_kept_and_renormalised() -> None:
    ids, masses = quantise([0.1, 0.5, 0.0, 0.4], 2)
    assert ids.tolist() == [1, 3]
    assert masses / TOTAL_MASS == pytest.approx([5 / 9, 4 / 9])


def test_ties_keep_the_lower_id() -> None:
    assert quantise([0.25] * 4, 2)[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "p", [[], [[0.5, 0.5]], [0.0, 0.0], [-0.1, 1.0], [float("nan"), 1.0], [float("inf"), 1.0]]
)
def test_bad_probabilities_are_refused(p: list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        quantise(p, 4)


def test_no_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="max_entries 0"):
        quantise([1.0], 0)


def test_draws_follow_the_masses() -> None:
    _, masses = quantise([0.7, 0.2, 0.06, 0.04], 4)
    draws = 100_000
    rows = np.broadcast_to(masses, (draws, 4))
    counts = np.bincount(sample_rows(rows, np.arange(draws), 12, 2), minlength=4)
    expected = masses / TOTAL_MASS * draws
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 0.1 %, 3 degrees of freedom


def test_padding_and_lone_entries() -> None:
    rows = np.array([[TOTAL_MASS, 0, 0]] * 5000)
    assert set(sample_rows(rows, np.arange(5000), 0, 0).tolist()) == {0}


def test_the_boundary_between_entries_is_exact() -> None:
    """One unit of 2^32 decides: nothing is rounded between the wire and the draw."""
    draw = int(words(keys(3, 4, Stream.DRAFT), hashes(5))[0])
    assert sample([draw + 1, TOTAL_MASS - draw - 1], 3, 4, 5) == 0
    assert sample([draw, TOTAL_MASS - draw], 3, 4, 5) == 1


def test_same_block_same_draws_other_block_other_draws() -> None:
    _, masses = quantise(np.ones(64), 64)
    here = [sample(masses, 5, 100, j) for j in range(8)]
    assert here == [sample(masses, 5, 100, j) for j in range(8)]
    # A later block meets position 101 at offset 0: it must not repeat what offset 1 drew.
    later = [sample(masses, 5, 101, j) for j in range(7)]
    assert later != here[1:]
