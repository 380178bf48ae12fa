from __future__ import annotations

import pytest

from benchmarks.bars import (
    BOTH,
    NGRAM,
    PLAIN,
    TRANSFORMERS,
    Bar,
    Verdict,
    never_slower_bars,
    speed_bars,
)
from benchmarks.measurements import Figure, Measurements
from tests.benchmarks.test_measurements import item


def one(value: float) -> Figure:
    return Figure(value, value, value, 1)


@pytest.mark.parametrize(
    ("got", "verdict"),
    [
        (1.0, Verdict.MET),
        (0.999, Verdict.WITHIN_NOISE),
        (0.95, Verdict.WITHIN_NOISE),
        (0.949, Verdict.MISSED),
    ],
)
def test_verdict(got: float, verdict: Verdict) -> None:
    assert Bar("x", 1.0, one(got), 0.95).verdict is verdict


def test_a_bar_without_a_figure_is_not_measured_and_never_met() -> None:
    bar = Bar("x", 1.0, None, 0.95)
    assert bar.verdict is Verdict.NOT_MEASURED
    assert bar.margin == 0.0


def test_margin_is_a_fraction_of_the_bar() -> None:
    assert Bar("x", 2.0, one(1.5), 2.0).margin == pytest.approx(-0.25)
    assert Bar("x", 2.0, one(3.0), 2.0).margin == pytest.approx(0.5)


def test_speed_bars_compare_the_right_rows() -> None:
    found = Measurements(
        [
            item(TRANSFORMERS, "a", 4.0, prompt_set="rewrite"),
            item(PLAIN, "a", 2.0, prompt_set="rewrite"),
            item(NGRAM, "a", 0.1, prompt_set="rewrite"),
            item(BOTH, "a", 0.5, prompt_set="rewrite"),
        ]
    )
    bars = {bar.name: bar for bar in speed_bars(found)}
    plain = bars["plain over transformers generate, bf16, all sets"]
    assert plain.got is not None
    assert plain.got.median == pytest.approx(2.0)
    rewrite = bars["speculation over plain, rewrite"]
    assert rewrite.got is not None
    assert rewrite.wanted == 2.7
    assert rewrite.got.median == pytest.approx(4.0)
    assert bars["speculation over plain, humaneval"].verdict is Verdict.NOT_MEASURED


def test_speed_bars_ignore_other_clients_and_temperatures() -> None:
    found = Measurements(
        [
            item(PLAIN, "a", 1.0, prompt_set="rewrite", clients=8),
            item(BOTH, "a", 0.1, prompt_set="rewrite", clients=8),
            item(PLAIN, "a", 1.0, prompt_set="rewrite", temperature=1.0),
            item(BOTH, "a", 0.1, prompt_set="rewrite", temperature=1.0),
        ]
    )
    assert all(bar.verdict is Verdict.NOT_MEASURED for bar in speed_bars(found))


def test_never_slower_has_a_bar_for_each_measured_cell() -> None:
    found = Measurements(
        [
            item(PLAIN, "a", 1.0),
            item(NGRAM, "a", 0.5),
            item(BOTH, "a", 1.25),
            item(PLAIN, "a", 1.0, clients=8, temperature=1.0),
            item(BOTH, "a", 1.02, clients=8, temperature=1.0),
        ]
    )
    verdicts = {bar.name: bar.verdict for bar in never_slower_bars(found)}
    assert verdicts == {
        "outrider ngram, rag, 1 client, T=0": Verdict.MET,
        "outrider both, rag, 1 client, T=0": Verdict.MISSED,
        "outrider both, rag, 8 clients, T=1": Verdict.WITHIN_NOISE,
    }
