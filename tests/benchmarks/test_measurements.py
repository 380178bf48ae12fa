from __future__ import annotations

import pytest

from benchmarks.measurements import CellKey, Measurement, Measurements, tokens_a_second


def item(row: str, unit: str, seconds: float, repetition: int = 0, **more: object) -> Measurement:
    values: dict[str, object] = {
        "row": row,
        "prompt_set": "rag",
        "clients": 1,
        "temperature": 0.0,
        "repetition": repetition,
        "unit": unit,
        "seconds": seconds,
        "new_tokens": 100,
        "prompt_tokens": 10,
        "outputs": (f"answer of {unit}",),
    }
    return Measurement(**(values | more))  # type: ignore[arg-type]


KEY = CellKey("fast", "rag", 1, 0.0)


def test_speed_of_a_repetition_is_all_tokens_over_all_seconds() -> None:
    found = Measurements([item("fast", "a", 1.0), item("fast", "b", 3.0)])
    cell = found.cell(KEY)
    assert cell is not None
    assert cell.speed.median == pytest.approx(50.0)
    assert cell.speed.repetitions == 1


def test_speed_is_the_median_over_repetitions_with_its_extremes() -> None:
    found = Measurements([item("fast", "a", s, r) for r, s in enumerate((1.0, 2.0, 10.0))])
    cell = found.cell(KEY)
    assert cell is not None
    speed = cell.speed
    assert (speed.median, speed.low, speed.high, speed.repetitions) == (50.0, 10.0, 100.0, 3)


def test_a_cell_that_was_not_measured_is_none() -> None:
    assert Measurements([item("slow", "a", 1.0)]).cell(KEY) is None


def test_ratio_takes_only_units_that_both_rows_measured() -> None:
    found = Measurements([item("fast", "a", 1.0), item("fast", "b", 100.0), item("slow", "a", 4.0)])
    ratio = found.ratio(KEY, "slow")
    assert ratio is not None
    assert ratio.median == pytest.approx(4.0)


def test_ratio_is_made_inside_each_repetition() -> None:
    # The machine is ten times slower in the second repetition; the ratio is 2 in both.
    found = Measurements(
        [
            item("fast", "a", 1.0, 0),
            item("slow", "a", 2.0, 0),
            item("fast", "a", 10.0, 1),
            item("slow", "a", 20.0, 1),
            item("fast", "a", 1.0, 2),
        ]
    )
    ratio = found.ratio(KEY, "slow")
    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high, ratio.repetitions) == (2.0, 2.0, 2.0, 2)


def test_ratio_without_common_units_is_none() -> None:
    assert Measurements([item("fast", "a", 1.0), item("slow", "b", 1.0)]).ratio(KEY, "slow") is None


def test_ratio_over_several_sets_weighs_by_time() -> None:
    found = Measurements(
        [
            item("fast", "a", 1.0),
            item("slow", "a", 2.0),
            item("fast", "b", 1.0, prompt_set="chat"),
            item("slow", "b", 4.0, prompt_set="chat"),
        ]
    )
    ratio = found.ratio_over([KEY, CellKey("fast", "chat", 1, 0.0)], "slow")
    assert ratio is not None
    assert ratio.median == pytest.approx(3.0)


def test_acceptance_is_summed_over_all_measurements() -> None:
    found = Measurements(
        [
            item("fast", "a", 1.0, steps=10, drafted=40, accepted=10),
            item("fast", "b", 1.0, steps=10, drafted=40, accepted=30),
        ]
    )
    cell = found.cell(KEY)
    assert cell is not None
    assert cell.mean_acceptance_length == pytest.approx(3.0)
    assert cell.draft_acceptance_rate == pytest.approx(0.5)


def test_same_outputs_counts_answers() -> None:
    found = Measurements(
        [
            item("fast", "a", 1.0, outputs=("x", "y")),
            item("slow", "a", 1.0, outputs=("x", "z")),
            item("fast", "b", 1.0),
        ]
    )
    assert found.same_outputs(KEY, "slow") == (1, 2)


def test_speed_is_of_the_steady_part_where_there_is_one() -> None:
    steady = item("fast", "a", 1.0, steady_seconds=0.5, steady_tokens=80.0)
    found = Measurements([steady, item("slow", "a", 2.0)])
    cell, ratio = found.cell(KEY), found.ratio(KEY, "slow")
    assert cell is not None and ratio is not None
    assert (cell.speed.median, ratio.median) == (160.0, 3.2)
    assert tokens_a_second(found.items) == pytest.approx(180 / 2.5)


def test_the_steady_part_has_tokens_and_seconds() -> None:
    with pytest.raises(ValueError, match="fast, a: steady seconds and tokens go together"):
        item("fast", "a", 1.0, steady_seconds=0.5)


def test_a_steady_part_is_in_the_document_where_there_is_one() -> None:
    steady = item("fast", "a", 1.0, steady_seconds=0.5, steady_tokens=80.0)
    assert steady.to_json()["seconds"] == 1.0
    assert Measurement.from_json(steady.to_json()) == steady
    assert not {"steady_seconds", "steady_tokens"} & set(item("fast", "a", 1.0).to_json())


def test_measurements_survive_json() -> None:
    measurement = item("fast", "a", 1.0, outputs=("x", "y"))
    assert Measurement.from_json(measurement.to_json()) == measurement


def test_cell_keys_are_in_order_of_appearance() -> None:
    found = Measurements([item("b", "a", 1.0), item("a", "a", 1.0), item("b", "b", 1.0)])
    assert [key.row for key in found.cell_keys()] == ["b", "a"]
