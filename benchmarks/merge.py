"""One report of several that were made on one machine.

    python -m benchmarks.merge {cpu,exactness,gpu} PART.json ... --out FOLDER [--name NAME]

Knows what parts must have in common: machine, software and commit; on a GPU the card, its driver
and the work, since there each engine is a part of its own. Figures are the parts' own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.bars import clients
from benchmarks.cpu_report import Report
from benchmarks.exact_report import ExactReport
from benchmarks.exact_run import CaseResult
from benchmarks.gpu_report import GpuReport
from benchmarks.measurements import CellKey, Measurement, Measurements
from benchmarks.report_files import write_report

_Value = TypeVar("_Value")

_COMMON = ("machine", "versions", "settings")
# Of a GPU report's machine, what two parts may differ in: they may be of different days.
_CARD_VARIES = ("date", "commit", "memory_gib")


def check_common(parts: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError naming what parts of one report differ in."""
    first = parts[0]
    for part in parts[1:]:
        for field in _COMMON:
            if part[field] != first[field]:
                raise ValueError(
                    f"{field}: {part[field]} is not {first[field]}; parts of one report must agree"
                )


def require_same_counting(parts: Iterable[Measurements]) -> None:
    """Raises ValueError where some have their speed of the steady part and others of all time."""
    items = [item for part in parts for item in part.items]
    whole = dict.fromkeys(item.row for item in items if item.steady_seconds is None)
    if whole and any(item.steady_seconds is not None for item in items):
        raise ValueError(
            f"steady_seconds: {', '.join(whole)} measured without, other parts with; speeds of the "
            "whole time and of the time in which all clients are busy do not belong in one report"
        )


def merge_cpu(parts: Sequence[dict[str, Any]]) -> Report:
    """The parts' measurements as one report. Raises ValueError where parts do not agree."""
    check_common(parts)
    reports = [Report.from_json(part) for part in parts]
    require_same_counting(report.measurements for report in reports)
    items = [item for report in reports for item in report.measurements.items]
    return Report(
        command=" ; ".join(report.command for report in reports),
        machine=reports[0].machine,
        versions=reports[0].versions,
        settings=reports[0].settings,
        measurements=Measurements(items),
        notes=(_side_by_side(len(parts)), *reports[0].notes),
        complete=all(report.complete for report in reports),
        rows=tuple(dict.fromkeys(row for report in reports for row in report.rows)),
    )


def merge_exactness(parts: Sequence[dict[str, Any]]) -> ExactReport:
    """The parts' cases as one report; plain ones, which every part has, count once.

    Raises ValueError where the parts do not belong together.
    """
    check_common(parts)
    cases: dict[str, CaseResult] = {}
    for part in parts:
        for row in part["cases"]:
            result = CaseResult.from_json(row)
            cases.setdefault(str(result.case), result)
    return ExactReport(
        command=" ; ".join(part["command"] for part in parts),
        mode=parts[0]["mode"],
        machine=parts[0]["machine"],
        versions=parts[0]["versions"],
        settings=parts[0]["settings"],
        results=list(cases.values()),
    )


def merge_gpu(parts: Sequence[dict[str, Any]]) -> GpuReport:
    """The parts' cells as one report; a cell that several parts have is taken from the last.

    Raises ValueError where card, driver, work, software or the way speeds are counted differ.
    """
    reports = [GpuReport.from_json(part) for part in parts]
    require_same_counting(report.measurements for report in reports)
    first = parts[0]
    fixed = [name for name in first["machine"] if name not in _CARD_VARIES]
    versions: dict[str, str] = {}
    for part in parts:
        _require_same("settings", part["settings"], first["settings"])
        for name in fixed:
            _require_same(name, part["machine"].get(name), first["machine"][name])
        for name, version in part["versions"].items():
            _require_same(name, version, versions.setdefault(name, version))
    cells: dict[CellKey, list[Measurement]] = {}
    again: list[CellKey] = []
    for report in reports:
        for key in report.measurements.cell_keys():
            again += [key] if key in cells else []
            cells[key] = report.measurements.of(key)
    notes = [f"Made of {len(parts)} runs, one after the other."] if len(parts) > 1 else []
    if again:
        names = dict.fromkeys(
            f"{key.row}, {clients(key.clients)}, T={key.temperature:g}" for key in again
        )
        notes.append(f"Measured again, the last run's figures are shown: {'; '.join(names)}.")
    return GpuReport(
        command=" ; ".join(report.command for report in reports),
        machine=dict(first["machine"]) | _joined(reports),
        versions=versions,
        settings=first["settings"],
        measurements=Measurements([item for items in cells.values() for item in items]),
        options=_last(report.options for report in reports),
        starts=_last(report.starts for report in reports),
        times=_last(report.times for report in reports),
        step_costs=next((r.step_costs for r in reports if r.step_costs.ms), reports[0].step_costs),
        notes=tuple(
            dict.fromkeys([*notes, *(note for report in reports for note in report.notes)])
        ),
        complete=all(report.complete for report in reports),
        rows=tuple(dict.fromkeys(row for report in reports for row in report.rows)),
    )


def _require_same(name: str, value: object, expected: object) -> None:
    if value != expected:
        raise ValueError(f"{name}: {value} is not {expected}; parts of one report must agree")


def _joined(reports: Sequence[GpuReport]) -> dict[str, str]:
    """What parts may differ in, each different value once."""
    return {
        name: ", ".join(dict.fromkeys(r.machine[name] for r in reports if name in r.machine))
        for name in _CARD_VARIES
        if any(name in report.machine for report in reports)
    }


def _last(values: Iterable[Mapping[str, _Value]]) -> dict[str, _Value]:
    """All entries; of those with the same name the last."""
    return {name: value for mapping in values for name, value in mapping.items()}


def _side_by_side(count: int) -> str:
    return (
        f"Measured in {count} runs, several at a time side by side, each on two cores of its own: "
        "rows of one set and temperature are neighbours in time, those of different ones are not."
    )


MERGES: dict[str, Callable[[Sequence[dict[str, Any]]], Report | ExactReport | GpuReport]] = {
    "cpu": merge_cpu,
    "exactness": merge_exactness,
    "gpu": merge_gpu,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge", description=__doc__)
    parser.add_argument("kind", choices=tuple(MERGES))
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="of the files, without ending; the kind by default")
    options = parser.parse_args()
    try:
        parts = [json.loads(path.read_text()) for path in options.parts]
        report = MERGES[options.kind](parts)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    write_report(report, options.out, options.name or options.kind)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
