"""Figures whose answers are known."""

from __future__ import annotations

import random

import pytest

from outrider.bench.statistics import percentile, ratio_of_sums, speed_ratio, summarise


def test_a_summary_of_known_values() -> None:
    summary = summarise([4.0, 1.0, 3.0, 2.0], (0, 50, 90, 100))
    assert summary is not None
    assert (summary.count, summary.mean, summary.median) == (4, 2.5, 2.5)
    assert summary.std == pytest.approx(1.118034)
    assert dict(summary.percentiles) == pytest.approx({0: 1.0, 50: 2.5, 90: 3.7, 100: 4.0})


def test_nothing_has_no_summary() -> None:
    assert summarise([]) is None


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([5.0], 99) == 5.0


def test_equal_ratios_have_no_spread_to_speak_of() -> None:
    ratio = ratio_of_sums([(2.0, 1.0)] * 8, units="prompts")
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert ratio.spread == "95 % bootstrap over 8 prompts"


def test_a_ratio_is_of_sums_not_of_ratios() -> None:
    ratio = ratio_of_sums([(10.0, 1.0), (1.0, 1.0)], units="prompts")
    assert ratio is not None
    assert ratio.value == 5.5
    assert (ratio.low, ratio.high) == (1.0, 10.0)
    assert ratio.spread == "lowest and highest of 2 prompts"


def test_one_pair_has_no_spread_and_says_so() -> None:
    ratio = ratio_of_sums([(3.0, 2.0)], units="blocks")
    assert ratio is not None
    assert ratio.spread == "no spread: too few blocks"


@pytest.mark.parametrize("pairs", [[], [(0.0, 1.0)], [(1.0, 0.0)]])
def test_no_ratio_where_there_is_none(pairs: list[tuple[float, float]]) -> None:
    assert ratio_of_sums(pairs, units="prompts") is None


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_claims() -> None:
    draw = random.Random(7)
    covered = 0
    for trial in range(50):
        pairs = [(draw.gauss(3, 0.5), draw.gauss(2, 0.5)) for _ in range(40)]
        ratio = ratio_of_sums(pairs, units="prompts", seed=trial)
        assert ratio is not None
        assert ratio.low <= ratio.value <= ratio.high
        covered += ratio.low <= 1.5 <= ratio.high
    assert 42 <= covered <= 50


def test_the_bootstrap_depends_on_the_seed_only() -> None:
    pairs = [(float(i), float(i % 3 + 1)) for i in range(1, 30)]
    assert ratio_of_sums(pairs, units="p", seed=1) == ratio_of_sums(pairs, units="p", seed=1)
    assert ratio_of_sums(pairs, units="p", seed=1) != ratio_of_sums(pairs, units="p", seed=2)


def test_a_speed_is_all_tokens_over_all_seconds() -> None:
    ratio = speed_ratio([(100.0, 1.0, 50.0, 1.0), (100.0, 3.0, 50.0, 1.0)], units="blocks")
    assert ratio is not None
    assert ratio.value == pytest.approx((200 / 4) / (100 / 2))
    assert ratio.low == pytest.approx((100 / 3) / 50)
    assert ratio.high == pytest.approx(2.0)
