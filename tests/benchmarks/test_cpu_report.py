from __future__ import annotations

import json

from benchmarks.bars import BOTH, PLAIN, TRANSFORMERS, Bar
from benchmarks.cpu_report import Report, base_row, never_slower_text, verdict
from benchmarks.measurements import Figure, Measurements
from tests.benchmarks.test_measurements import item


def report() -> Report:
    found = Measurements(
        [
            item(TRANSFORMERS, "a", 4.0),
            item(PLAIN, "a", 2.0, 0),
            item(PLAIN, "a", 2.5, 1),
            item(BOTH, "a", 1.0, 0, steps=10, drafted=40, accepted=20),
            item(BOTH, "a", 1.0, 1, steps=10, drafted=40, accepted=20),
        ]
    )
    return Report("python -m x", {"cpu": "Z80"}, {"torch": "2"}, {"seed": "1"}, found, ("A note.",))


def test_document_and_page_survive_json() -> None:
    document = json.loads(json.dumps(report().to_json()))
    again = Report.from_json(document)
    assert again.to_markdown() == report().to_markdown()
    assert again.to_json() == document


def test_the_page_shows_command_machine_notes_and_figures() -> None:
    page = report().to_markdown()
    for text in ("`python -m x`", "cpu Z80", "torch 2", "A note.", "## 1 client, T=0"):
        assert text in page
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {BOTH} |")]
    # 100 tokens a second, 2.25 times plain's median, 3.00 tokens a step, half accepted.
    assert "**100.0** (100.0–100.0)<br>×2.25<br>3.00 / 50 %<br>2/2 same" in line
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {PLAIN} |")]
    assert "**45.0** (40.0–50.0)<br>×2.00" in line


def test_an_interrupted_run_says_so() -> None:
    document = report().to_json() | {"complete": False}
    assert "interrupted" in Report.from_json(document).to_markdown()
    assert "interrupted" not in report().to_markdown()


def test_verdicts_say_by_how_much() -> None:
    assert verdict(Bar("x", 2.0, Figure(1.5, 1.5, 1.5, 1), 2.0)) == "missed, 25 % below"
    assert verdict(Bar("x", 2.0, Figure(3.0, 3.0, 3.0, 1), 2.0)) == "met, 50 % above"
    assert verdict(Bar("x", 2.0, None, 2.0)) == "not measured"


def test_cells_slower_than_plain_are_listed_worst_first() -> None:
    def bar(name: str, value: float) -> Bar:
        return Bar(name, 1.0, Figure(value, value, value, 1), 0.95)

    text = never_slower_text([bar("good", 1.1), bar("meh", 0.97), bar("bad", 0.8)])
    assert "3 cells: 1 at 1.00 or above, 1 within noise (0.95 to 1.00), 1 below." in text
    assert "good" not in text
    assert text.index("bad") < text.index("meh")


def test_a_cold_row_that_found_its_prompt_cached_is_exposed() -> None:
    warm = Measurements([item("outrider both, warm", "a", 1.0, cached_prompt_tokens=9)])
    cold = Measurements([item(BOTH, "a", 1.0, cached_prompt_tokens=9)])
    assert "Not cold" not in Report("x", {}, {}, {}, warm).to_markdown()
    assert f"Not cold: {BOTH} found" in Report("x", {}, {}, {}, cold).to_markdown()


def test_every_row_is_compared_with_its_own_plain_row() -> None:
    assert base_row("vllm suffix") == "vllm plain"
    assert base_row("outrider both, warm") == PLAIN
    assert base_row(PLAIN) == base_row("transformers prompt lookup") == TRANSFORMERS
