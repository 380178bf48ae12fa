from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import merge
from benchmarks.cpu_report import Report
from benchmarks.exact_cases import Case
from benchmarks.exact_report import ExactReport
from benchmarks.exact_run import CaseResult
from benchmarks.measurements import Measurement, Measurements


def cpu(prompt_set: str, machine: str = "m") -> dict[str, Any]:
    item = Measurement(
        row="outrider plain",
        prompt_set=prompt_set,
        clients=1,
        temperature=0.0,
        repetition=0,
        unit="u",
        seconds=2.0,
        new_tokens=8,
        prompt_tokens=3,
        steps=0,
        drafted=0,
        accepted=0,
        cached_prompt_tokens=0,
        outputs=("x",),
    )
    return Report(
        command=f"--sets {prompt_set}",
        machine={"cpu": machine},
        versions={"torch": "1"},
        settings={"seed": "1"},
        measurements=Measurements([item]),
        notes=("A note.",),
        rows=("outrider plain",),
    ).to_json()


def exact(k: int) -> dict[str, Any]:
    cases = [Case("none", 0, 0.0, 1), Case("ngram", k, 0.0, 1)]
    results = [CaseResult(case, 40, 40, 600, 10, 20, 5, 1.0, ()) for case in cases]
    return ExactReport(f"--k {k}", "in process", {"cpu": "m"}, {}, {}, results).to_json()


def test_measurements_of_all_parts_are_in_one_report() -> None:
    merged = merge.merge_cpu([cpu("rag"), cpu("chat")])
    assert [item.prompt_set for item in merged.measurements.items] == ["rag", "chat"]
    assert merged.command == "--sets rag ; --sets chat"
    assert "2 runs" in merged.notes[0] and merged.notes[1] == "A note."


def test_parts_of_different_machines_are_refused() -> None:
    with pytest.raises(ValueError, match="machine"):
        merge.merge_cpu([cpu("rag"), cpu("chat", machine="other")])


def test_parts_whose_speeds_are_counted_differently_are_refused() -> None:
    steady = cpu("chat")
    steady["measurements"][0] |= {"steady_seconds": 1.0, "steady_tokens": 6.5}
    with pytest.raises(ValueError, match="steady_seconds: outrider plain measured without"):
        merge.merge_cpu([cpu("rag"), steady])


def test_cases_that_every_part_has_count_once() -> None:
    merged = merge.merge_exactness([exact(1), exact(4)])
    assert [str(result.case) for result in merged.results] == [
        str(Case("none", 0, 0.0, 1)),
        str(Case("ngram", 1, 0.0, 1)),
        str(Case("ngram", 4, 0.0, 1)),
    ]
    assert merged.passed


def test_the_command_writes_page_and_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rag", "chat"):
        (tmp_path / f"{name}.json").write_text(json.dumps(cpu(name)))
    parts = [str(tmp_path / "rag.json"), str(tmp_path / "chat.json")]
    monkeypatch.setattr(sys, "argv", ["merge", "cpu", *parts, "--out", str(tmp_path / "out")])
    assert merge.main() == 0
    assert (tmp_path / "out" / "cpu.md").read_text().startswith("# Tokens a second")
    assert len(json.loads((tmp_path / "out" / "cpu.json").read_text())["measurements"]) == 2
