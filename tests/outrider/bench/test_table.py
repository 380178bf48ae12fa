"""What a terminal shows."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from outrider.bench.table import all_notes, point_table, report, summary_table, verdict
from tests.outrider.bench.results import point


def shown(renderable: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(renderable)
    return out.getvalue()


def row(text: str, title: str) -> list[str]:
    line = next(line for line in text.splitlines() if title in line)
    return [cell.strip() for cell in line.strip("│┃ ").split("│")]


def test_an_arm_stands_beside_its_baseline() -> None:
    text = shown(point_table(point(p99_tpot_ms=9.0, mean_gap_ms=4.0)))
    assert row(text, "Output tokens/s") == [
        *["Output tokens/s", "150.00", "100.00", "1.50 (1.40 to 2.00)"]
    ]
    assert row(text, "Mean TPOT") == ["Mean TPOT", "6.25", "6.25", "1.60 (1.60 to 1.60)"]
    assert row(text, "P99 TPOT")[1:3] == ["9.00", "–"]
    assert row(text, "Acceptance length")[1] == "2.50"
    assert row(text, "Position 1")[1] == "40.00"
    assert "GAP" not in text
    assert "GAP" in shown(point_table(point(mean_gap_ms=4.0), ["gap"]))


def test_positions_that_not_every_step_reached_show_both_rates() -> None:
    text = shown(
        point_table(point(spec_decode_per_position_rates_of_reached=[0.7, 0.8], baseline=None))
    )
    assert row(text, "Position 1")[1] == "40.00 (80.00 of those that reached it)"
    assert "speed-up" not in text


def test_several_points_are_lines() -> None:
    text = shown(report([point("K=2"), point("K=4", clients=8)], ["Beware."], ["tpot"]))
    assert row(text, "K=4")[:2] == ["8 clients", "K=4"]
    assert "Note: Beware." in text
    assert shown(summary_table([point(baseline=None)])).count("–") >= 3


def test_at_a_fixed_rate_the_verdict_is_of_latency() -> None:
    assert verdict(point(clients=None, rate=2.0)).startswith(
        "2 requests/s, speculation: answers come 1.40 times as fast"
    )


@pytest.mark.parametrize(
    ("more", "title"),
    [
        ({"clients": None}, "all at once"),
        ({"clients": 8}, "8 clients"),
        ({"clients": 8, "rate": 0.5}, "8 clients, 0.5 requests/s"),
    ],
)
def test_loads_have_names(more: Any, title: str) -> None:
    assert verdict(point(**more)).startswith(f"{title}, ")


def test_a_single_block_has_the_spread_of_its_answers() -> None:
    one = point(clients=8)
    one["speedup"]["output_throughput"] = {
        "value": 1.5,
        "low": 1.5,
        "high": 1.5,
        "spread": "no spread: too few blocks of prompts",
    }
    assert verdict(one).startswith(
        "8 clients, speculation: tokens come 1.50 times as fast as without (no spread: too few "
        "blocks of prompts). Answers come 1.40 times as fast (1.30 to 1.50; 95 % bootstrap"
    )
    assert "Answers come" not in verdict(point())
    assert row(shown(summary_table([one])), "8 clients")[4:6] == ["1.50", "–"]
    assert row(shown(summary_table([point()])), "1 client")[4:6] == ["1.50", "1.40 to 2.00"]


def test_a_rising_rate_is_an_open_loop() -> None:
    rising = point(
        clients=None, ramp_up_strategy="linear", ramp_up_start_rps=1.0, ramp_up_end_rps=2.5
    )
    assert verdict(rising).startswith(
        "1 to 2.5 requests/s, speculation: answers come 1.40 times as fast"
    )


def test_a_note_is_told_once() -> None:
    assert all_notes(["a"], [{"notes": ["b", "a"]}, {"notes": ["b"]}]) == ["a", "b"]
