from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.divergence import (
    TOLERANCE,
    Logits,
    check_plain,
    compare,
    first_difference,
    scores,
)
from outrider.coupling import gumbel

SEED = -(2**40)


class Table:
    """Logits that depend on the last id: row `id` of a table."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self.rows = np.array(rows, dtype=np.float32)

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        return self.rows[list(ids[first - 1 :])]


# After 0 comes 1, after 1 comes 2, after 2 comes 0; after 3 tokens 0 and 1 are nearly equal.
TARGET = Table([[0, 9, 0, 0], [0, 0, 9, 0], [9, 0, 0, 0], [5, 5 + TOLERANCE / 4, 1, 0]])


@pytest.mark.parametrize(
    ("one", "other", "position"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None), ([], [1], 0)],
)
def test_first_difference(one: list[int], other: list[int], position: int | None) -> None:
    assert first_difference(one, other) == position
    assert first_difference(other, one) == position


def test_equal_outputs_have_no_divergence() -> None:
    assert compare(TARGET, [0], [1, 2], [1, 2], temperature=0, seed=SEED) is None


def test_a_wrong_token_is_a_failure_with_its_scores() -> None:
    found = compare(TARGET, [0], [1, 2, 0], [1, 3, 0], temperature=0, seed=SEED)
    assert found is not None
    assert not found.numerical
    assert (found.position, found.expected, found.got) == (1, 2, 3)
    assert (found.expected_score, found.got_score, found.gap) == (9.0, 0.0, 9.0)


def test_a_tie_within_the_tolerance_is_numerical() -> None:
    found = compare(TARGET, [3], [1, 2], [0, 1], temperature=0, seed=SEED)
    assert found is not None
    assert found.numerical
    assert found.gap == pytest.approx(TOLERANCE / 4, rel=0.05)


def test_a_gap_at_the_tolerance_is_a_failure() -> None:
    target = Table([[0, 0], [1.0, 1.0 + 2 * TOLERANCE]])
    found = compare(target, [1], [1], [0], temperature=0, seed=SEED)
    assert found is not None
    assert not found.numerical


def test_two_equal_candidates_below_the_best_token_are_a_failure() -> None:
    target = Table([[9.0, 1.0, 1.0]])
    found = compare(target, [0], [1], [2], temperature=0, seed=SEED)
    assert found is not None
    assert found.expected_score == found.got_score
    assert not found.numerical


def test_an_output_that_ends_early_is_a_failure() -> None:
    found = compare(TARGET, [0], [1, 2], [1], temperature=0, seed=SEED)
    assert found is not None
    assert (found.position, found.expected, found.got, found.gap) == (1, 2, -1, None)
    assert not found.numerical


def test_scores_at_temperature_zero_are_logits() -> None:
    assert scores(TARGET.rows[:1], 0, SEED, 5).tolist() == [[0, 9, 0, 0]]


def test_scores_add_the_shared_noise_of_absolute_positions() -> None:
    found = scores(TARGET.rows[:2], 0.5, SEED, 7)
    noise = gumbel(SEED, [7, 8], [0, 1, 2, 3])
    assert found == pytest.approx(TARGET.rows[:2] / 0.5 + noise)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_right_output_passes_the_plain_check(temperature: float) -> None:
    prompt, output = [0, 2], list[int]()
    for _ in range(20):
        ids = [*prompt, *output]
        row = scores(TARGET.logits(ids, len(ids)), temperature, SEED, len(ids))
        output.append(int(row[0].argmax()))
    assert check_plain(TARGET, prompt, output, temperature=temperature, seed=SEED) == []
    wrong = list(output)
    wrong[4] = (wrong[4] + 1) % 4
    found = check_plain(TARGET, prompt, wrong, temperature=temperature, seed=SEED)
    assert (found[0].position, found[0].expected, found[0].got) == (4, output[4], wrong[4])


def test_the_plain_check_depends_on_the_seed() -> None:
    flat = Table(np.zeros((4, 4)).tolist())
    output: list[int] = []
    for _ in range(12):
        position = 1 + len(output)
        output.append(int(gumbel(1, position, np.arange(4))[0].argmax()))
    assert check_plain(flat, [0], output, temperature=1.0, seed=1) == []
    assert check_plain(flat, [0], output, temperature=1.0, seed=2) != []
