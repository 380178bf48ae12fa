from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.cpu import main, measure_all, warm_up
from benchmarks.cpu_options import NOTES, parse
from benchmarks.cpu_report import Report
from benchmarks.measurements import Measurements
from benchmarks.prompts import SET_NAMES
from benchmarks.systems import Answer, Work
from tests.benchmarks.test_plan import Echo, plan, rows


def test_by_default_everything_is_measured() -> None:
    options = parse([])
    assert tuple(options.sets) == SET_NAMES
    assert (options.clients, options.temperatures) == ([1, 8], [0.0, 1.0])
    assert (options.prompts, options.new_tokens, options.stop_at_eos) == (6, 128, False)


def test_an_unknown_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--sets", "news"])
    assert ended.value.code == 2
    assert "'news'; allowed are summarization" in capsys.readouterr().err


def test_quick_is_small() -> None:
    options = parse(["--quick"])
    assert (len(options.sets), options.prompts, options.repetitions) == (1, 1, 1)


def test_a_run_writes_both_files_and_they_can_be_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Report("cmd", {}, {}, {}, Measurements(), NOTES, complete=False)
    measure_all(plan(*rows("a", "b")), empty, tmp_path, Console(quiet=True))
    document = json.loads((tmp_path / "cpu.json").read_text())
    assert document["complete"] is True
    assert len(document["measurements"]) == 2 * 2 * (3 + 1)
    page = (tmp_path / "cpu.md").read_text()
    assert "| a | " in page

    again = tmp_path / "again"
    arguments = ["cpu", "--render", str(tmp_path / "cpu.json"), "--out", str(again)]
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 0
    assert (again / "cpu.md").read_text() == page


def test_an_interrupted_run_keeps_its_finished_sweeps(tmp_path: Path) -> None:
    class Failing(Echo):
        def generate(self, work: Work) -> Answer:
            if len(work.prompts) > 1:
                raise KeyboardInterrupt
            return super().generate(work)

    (row,) = rows("a")
    empty = Report("cmd", {}, {}, {}, Measurements(), complete=False)
    with pytest.raises(KeyboardInterrupt):
        measure_all(plan(replace(row, system=Failing())), empty, tmp_path, Console(quiet=True))
    document = json.loads((tmp_path / "cpu.json").read_text())
    assert document["complete"] is False
    assert len(document["measurements"]) == 3


def test_warm_up_runs_every_row_at_every_number_of_clients() -> None:
    (row,) = rows("a")
    warm_up(plan(row), 2, Console(quiet=True))
    assert isinstance(row.system, Echo)
    assert sorted(len(work.prompts) for work in row.system.works) == [1, 1, 8, 8]


def test_a_missing_model_is_a_clear_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["cpu", "--model", "./nowhere"])
    assert main() == 2
    assert "there is no folder './nowhere'" in capsys.readouterr().err.replace("\n", " ")
