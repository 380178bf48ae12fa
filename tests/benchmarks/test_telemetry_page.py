"""The report as it is written, read again and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.telemetry_page import NAME, CostReport
from tests.benchmarks.turns import quad, turn

TWO_SERVERS = {
    "command": "python -m benchmarks.telemetry_two_servers",
    "machine": {"commit": "abc1234"},
    "result": {"ratio": 1.031, "low": 0.9, "high": 1.19, "without": 20.0, "with_it": 22.0},
    "pairs": [{"without": 1.0, "with_it": 1.0}] * 16,
}
REPORT = CostReport(
    command="cmd",
    machine={"cpu": "Xeon"},
    versions={"torch": "2"},
    settings={"new tokens": "48"},
    cores=2,
    idle={"none": 1.5, "summary": 2.25},
    turns=tuple(made for n in range(8) for made in quad(50.0, 49.0, number=n)),
    traced=320,
    received=320,
)


def test_a_report_comes_back_and_its_page_too(tmp_path: Path) -> None:
    written = replace(REPORT, two_servers=TWO_SERVERS)
    written.write(tmp_path)
    read = CostReport.load(tmp_path / f"{NAME}.json")
    assert read == written
    assert read.to_markdown() == (tmp_path / f"{NAME}.md").read_text()
    assert CostReport.load(tmp_path / "none.json") == CostReport()


def test_the_json_has_the_figures_beside_what_they_are_of() -> None:
    document = REPORT.to_json()
    (level,) = document["levels"]
    assert (level["clients"], level["verdict"]) == (1, "over 1%")
    assert level["change"]["count"] == 16
    assert set(document["modes"]) == {"summary", "off", "none"}


def test_the_page_shows_cost_interval_and_verdict() -> None:
    page = REPORT.to_markdown()
    assert "| 1 | +2.00% | +2.00% to +2.00% | over 1% | 16 | +0.00% |" in page
    assert "320 requests were traced; 320 reached the evidence." in page
    assert "`--trace-level none` 1.50; `--trace-level summary` 2.25" in page
    assert "interrupted" not in page
    assert "interrupted" in replace(REPORT, received=None).to_markdown()


def test_processor_time_is_of_the_machine_that_a_request_had() -> None:
    """Two requests at once of 2 s: each has a second of two cores, of which 4 ms are 0.2 %."""
    turns = [
        turn(mode, [50.0], clients=2, quad=n, gateway_ms=8.0 * mode)
        for n in range(6)
        for mode in (True, False, False, True)
    ]
    page = replace(REPORT, turns=tuple(turns)).to_markdown()
    assert "| 2 | gateway | +4.00 | +4.00 to +4.00 | +0.20% | +0.40% |" in page


def test_without_turns_only_two_servers_are_shown() -> None:
    page = CostReport(two_servers=TWO_SERVERS).to_markdown()
    assert "16 pairs: 1.03 of the speed without, their middle half from 0.90 to 1.19" in page
    assert "How to read this" not in page
