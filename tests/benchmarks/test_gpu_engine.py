from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.gpu_engine import (
    CaseFailed,
    code_caches,
    last_error,
    measure,
    parse,
    resumed,
    shapes,
)
from benchmarks.gpu_engine_page import EngineReport

QUIET = Console(quiet=True)


def times(run: float) -> dict[str, Any]:
    return {
        "run_ms": run,
        "middle_half_ms": [run - 0.1, run + 0.1],
        "forward_ms": 4.6,
        "forward_span_ms": 4.8,
        "others_ms": 0.07,
    }


def result(run: float = 5.0, answer: int = 7) -> dict[str, Any]:
    return {
        "import_seconds": 1.0,
        "start_seconds": 27.0,
        "forward": "lean decoder",
        "torch": "2.13.0",
        "device_name": "H200",
        "memory_gib": 14.8,
        "errors": {},
        "checks": {"greedy: right drafts accepted": [24, 24]},
        "answers": {"greedy": [[answer, 8, 9]]},
        "decoding": [
            {
                "sequences": 8,
                "tokens": 5,
                "greedy": times(run),
                "random": times(run),
                "filtered": times(run),
            }
        ],
        "prefill": [{"tokens": 512, "beside": 8, **times(12.5)}],
    }


class Case:
    """Runs nothing: answers with `results`, and remembers what was asked."""

    def __init__(self, *results: dict[str, Any] | str) -> None:
        self._results = list(results)
        self.asked: list[dict[str, Any]] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(
        self, bench: dict[str, Any], environment: Mapping[str, str], log: Path, seconds: float
    ) -> dict[str, Any]:
        self.asked.append(bench)
        self.environments.append(environment)
        answer = self._results.pop(0)
        if isinstance(answer, str):
            raise CaseFailed(answer)
        return answer


def options(tmp_path: Path, *arguments: str) -> argparse.Namespace:
    return parse(["--out", str(tmp_path), *arguments])


def empty(commit: str = "abc") -> EngineReport:
    return EngineReport("python -m benchmarks.gpu_engine", {"gpu": "H200", "commit": commit}, {})


def test_one_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    case = Case(result(), "ModelLoadError: not here (exit code 1)", result(10.0, answer=1))
    chosen = options(tmp_path, "--configs", "base,fp8,eager")
    measure(chosen, empty(), {"model": "m"}, tmp_path, QUIET, case)
    assert [asked["settings"] for asked in case.asked] == [
        {},
        {"quantization": "fp8"},
        {"enforce_eager": True, "compile": False},
    ]
    page = (tmp_path / "gpu_engine.md").read_text()
    assert "- **fp8 failed:** ModelLoadError: not here (exit code 1)" in page
    assert "| 8 × 5 | 5.00 | 10.00 (×2.00) |" in page
    assert "| greedy: tokens equal the first column's | 3/3 | 2/3 |" in page
    row = "| 8 × 5 | 5.00 (4.90–5.10) | 5.00 (4.90–5.10) | 5.00 (4.90–5.10) |"
    assert f"{row} – | 4.60 (4.80) | 0.07 / 0.07 / 0.07 |" in page
    assert "Prefill: 512 tokens beside 8 12.5 ms." in page
    assert "interrupted" not in page


def test_what_was_measured_is_kept_where_the_run_is_cut_off(tmp_path: Path) -> None:
    class CutOff(Case):
        def __call__(self, *arguments: Any) -> dict[str, Any]:
            if len(self.asked) == 1:
                raise KeyboardInterrupt
            return super().__call__(*arguments)

    chosen = options(tmp_path, "--configs", "base,int8")
    with pytest.raises(KeyboardInterrupt):
        measure(chosen, empty(), {}, tmp_path, QUIET, CutOff(result()))
    assert "interrupted" in (tmp_path / "gpu_engine.md").read_text()
    again = Case(result(4.0))
    report = resumed(empty(), tmp_path / "gpu_engine.json")
    done = measure(chosen, report, {}, tmp_path, QUIET, again)
    assert [asked["settings"] for asked in again.asked] == [{"quantization": "int8"}]
    assert done.complete and list(done.results) == ["base", "int8"]


def test_a_configuration_that_failed_is_tried_again(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--configs", "int8")
    failed = measure(chosen, empty(), {}, tmp_path, QUIET, Case("no"))
    broken = {**result(), "errors": {"kernels": "RuntimeError: no profiler"}}
    partly = measure(chosen, failed, {}, tmp_path, QUIET, Case(broken))
    assert "**kernels failed:** RuntimeError: no profiler" in partly.to_markdown()
    done = measure(chosen, partly, {}, tmp_path, QUIET, Case(result()))
    assert "error" not in done.results["int8"] and not done.results["int8"]["errors"]


def test_a_run_may_go_on_after_a_correction_and_each_result_tells_its_commit(
    tmp_path: Path,
) -> None:
    measure(options(tmp_path), empty("old"), {}, tmp_path, QUIET, Case(result()))
    report = resumed(empty("new"), tmp_path / "gpu_engine.json")
    assert report.machine["commit"] == "old, new"
    chosen = options(tmp_path, "--configs", "base,int8")
    done = measure(chosen, report, {}, tmp_path, QUIET, Case(result()))
    assert {name: one["commit"] for name, one in done.results.items()} == {
        "base": "old",
        "int8": "new",
    }
    assert "commit old; torch" in done.to_markdown()


def test_another_machines_report_is_not_added_to(tmp_path: Path) -> None:
    measure(options(tmp_path), empty(), {}, tmp_path, QUIET, Case(result()))
    other = EngineReport("c", {"gpu": "H100", "commit": "abc"}, {})
    with pytest.raises(ValueError, match="--again"):
        resumed(other, tmp_path / "gpu_engine.json")


def test_a_start_is_cold_where_there_is_no_compiled_code_yet(tmp_path: Path) -> None:
    code = tmp_path / "code"

    class Compiling(Case):
        def __call__(self, *arguments: Any) -> dict[str, Any]:
            code.mkdir(exist_ok=True)
            return super().__call__(*arguments)

    case = Compiling({"start_seconds": 80.0}, result(), result())
    chosen = options(tmp_path, "--configs", "base,int8", "--code", str(code))
    measure(chosen, empty(), {}, tmp_path, QUIET, case)
    assert [asked.get("start_only", False) for asked in case.asked] == [True, False, False]
    assert case.environments == [code_caches(code)] * 3
    assert set(code_caches(code).values()) == {f"{code}/inductor", f"{code}/triton"}
    assert "27 s; 80 s without compiled code" in (tmp_path / "gpu_engine.md").read_text()


def test_the_report_survives_json() -> None:
    report = EngineReport("c", {"gpu": "H200"}, {"context": "512"}, {"int8": result()}, True)
    again = EngineReport.from_json(json.loads(json.dumps(report.to_json())))
    assert again == report and again.to_markdown() == report.to_markdown()


def test_an_error_is_told_by_the_line_that_names_it() -> None:
    log = "loading\nTraceback (most recent call last):\n  File\nValueError: no\nWarning: gone\n"
    assert last_error(log, 1) == "ValueError: no (exit code 1)"
    assert last_error("", -9) == "no output (exit code -9)"


@pytest.mark.parametrize("text", ["8", "8x", "0x1", "ax1"])
def test_a_shape_is_sequences_and_tokens(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="SEQUENCESxTOKENS"):
        shapes(text)
    assert shapes("8x5, 1x1") == [(8, 5), (1, 1)]


def test_an_unknown_configuration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--configs", "int3"])
    assert "'int3' is not one of base, int8, fp8" in capsys.readouterr().err
