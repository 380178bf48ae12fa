"""One report of several that were made side by side, each on cores of its own.

    python -m benchmarks.merge {cpu,exactness} PART.json ... --out FOLDER [--name NAME]

Knows what parts must have in common: machine, software and commit. Figures are the parts' own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu_report import Report
from benchmarks.exact_report import ExactReport
from benchmarks.exact_run import CaseResult
from benchmarks.measurements import Measurements

_COMMON = ("machine", "versions", "settings")


def check_common(parts: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError naming what parts of one report differ in."""
    first = parts[0]
    for part in parts[1:]:
        for field in _COMMON:
            if part[field] != first[field]:
                raise ValueError(
                    f"{field}: {part[field]} is not {first[field]}; parts of one report must agree"
                )


def merge_cpu(parts: Sequence[dict[str, Any]]) -> Report:
    """The parts' measurements as one report. Raises ValueError where parts do not agree."""
    check_common(parts)
    reports = [Report.from_json(part) for part in parts]
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


def _side_by_side(count: int) -> str:
    return (
        f"Measured in {count} runs, several at a time side by side, each on two cores of its own: "
        "rows of one set and temperature are neighbours in time, those of different ones are not."
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge", description=__doc__)
    parser.add_argument("kind", choices=("cpu", "exactness"))
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="of the files, without ending; the kind by default")
    options = parser.parse_args()
    try:
        parts = [json.loads(path.read_text()) for path in options.parts]
        report = merge_cpu(parts) if options.kind == "cpu" else merge_exactness(parts)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    name = options.name or options.kind
    (options.out / f"{name}.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    (options.out / f"{name}.md").write_text(report.to_markdown())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
