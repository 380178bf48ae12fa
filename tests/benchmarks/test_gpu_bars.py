from __future__ import annotations

import pytest

from benchmarks.bars import BOTH, NGRAM, PLAIN, SUFFIX, Verdict
from benchmarks.gpu_bars import VLLM_PLAIN, relative, relative_bars, wanted
from benchmarks.measurements import CellKey, Measurements
from tests.benchmarks.gpu_fakes import item

KEY = CellKey(PLAIN, "spec-bench", 1, 0.0)


@pytest.mark.parametrize(
    ("row", "clients", "temperature", "least"),
    [
        (PLAIN, 1, 0.0, 0.95),
        (PLAIN, 8, 1.0, 1.0),
        (PLAIN, 128, 0.0, 0.95),
        (NGRAM, 1, 0.0, 2.3),
        (SUFFIX, 8, 0.0, 2.0),
        (BOTH, 32, 0.0, 1.6),
        (NGRAM, 128, 0.0, 1.15),
        (NGRAM, 1, 1.0, 1.3),
        (SUFFIX, 8, 1.0, 1.3),
        (BOTH, 32, 1.0, 1.1),
        (NGRAM, 128, 1.0, 1.0),
        (NGRAM, 4, 0.0, None),
        (VLLM_PLAIN, 1, 0.0, None),
    ],
)
def test_the_bars_are_those_of_the_table(
    row: str, clients: int, temperature: float, least: float | None
) -> None:
    assert wanted(row, clients, temperature) == least


def test_a_ratio_is_of_medians_and_its_spread_the_widest() -> None:
    found = Measurements(
        [item(PLAIN, speed, repetition=n) for n, speed in enumerate((90.0, 100.0, 120.0))]
        + [item(VLLM_PLAIN, speed, repetition=n) for n, speed in enumerate((180.0, 200.0))]
    )
    got = relative(found, KEY)
    assert got is not None
    assert got.median == pytest.approx(100 / 190)
    assert got.low == pytest.approx(90 / 200)
    assert got.high == pytest.approx(120 / 180)
    assert got.repetitions == 2


def test_without_the_peer_there_is_no_ratio() -> None:
    assert relative(Measurements([item(PLAIN, 100)]), KEY) is None
    assert relative(Measurements([item(PLAIN, 100, clients=8), item(VLLM_PLAIN, 1)]), KEY) is None


def test_every_cell_of_the_table_has_a_bar_measured_or_not() -> None:
    found = Measurements(
        [item(PLAIN, 96), item(NGRAM, 229), item(SUFFIX, 231), item(VLLM_PLAIN, 100)]
    )
    bars = {bar.name: bar.verdict for bar in relative_bars(found)}
    assert len(bars) == 2 * 4 + 3 * 4 + 3 * 4
    assert bars[f"{PLAIN}, 1 client, T=0"] is Verdict.MET
    assert bars[f"{NGRAM}, 1 client, T=0"] is Verdict.MISSED
    assert bars[f"{SUFFIX}, 1 client, T=0"] is Verdict.MET
    assert bars[f"{SUFFIX}, 128 clients, T=1"] is Verdict.NOT_MEASURED
    assert list(bars.values()).count(Verdict.NOT_MEASURED) == 29


def test_nothing_measured_has_all_bars_too() -> None:
    assert {bar.verdict for bar in relative_bars(Measurements())} == {Verdict.NOT_MEASURED}
