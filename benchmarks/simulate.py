"""What the controller would have decided on recorded rounds, against plain and each fixed K.

    outrider verifier ... --record-rounds rounds.jsonl.gz
    python -m benchmarks.simulate rounds.jsonl.gz

Runs no model: steps are priced by a curve fitted from the recording's own times. Knows how the
comparison is shown; how rounds are replayed is verifier_service.simulation's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.entry import end_with
from outrider.draft_schedule import parse_draft_schedule
from verifier_service.simulation.policies import Comparison, Load, compare, load_of
from verifier_service.simulation.recording import read_recording
from verifier_service.simulation.replay import Replayed


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    options = _parse(arguments)
    shown = console or Console()

    def run() -> bool:
        schedule = None
        if options.schedule is not None:
            schedule = parse_draft_schedule(options.schedule, "--schedule")
        report = {}
        for path in options.recording:
            load = load_of(read_recording(path))
            if options.concurrency:
                load = replace(load, concurrency=options.concurrency)
            comparison = compare(load, schedule=schedule)
            report[path.name] = describe(load, comparison)
            if not options.json:
                shown.print(table(path.name, load, comparison))
        if options.json:
            sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return True

    return end_with(run, Console(stderr=True))


def table(name: str, load: Load, comparison: Comparison) -> Table:
    """One recording's policies, the fastest fixed K marked."""
    result = Table(
        title=f"{name}: {len(load.traces)} sequences, {load.concurrency} at once",
        title_justify="left",
    )
    result.add_column("policy")
    for heading in ("tokens/s", "of plain", "of best K", "drafts/step", "accepted", "steps"):
        result.add_column(heading, justify="right")
    for label, run in _policies(comparison):
        drafted = sum(run.drafted)
        result.add_row(
            label,
            f"{run.rate:.1f}",
            f"{run.rate / comparison.plain.rate:.3f}",
            f"{run.rate / comparison.best.rate:.3f}",
            f"{drafted / len(run.drafted):.2f}",
            f"{run.accepted / drafted:.1%}" if drafted else "-",
            str(len(run.tokens)),
        )
    return result


def describe(load: Load, comparison: Comparison) -> dict[str, object]:
    """The same as plain data."""
    return {
        "sequences": len(load.traces),
        "concurrency": load.concurrency,
        "best_k": comparison.best_k,
        "controller_of_plain": round(comparison.against_plain, 4),
        "controller_of_best_k": round(comparison.against_best, 4),
        "tokens_per_second": {label: round(run.rate, 2) for label, run in _policies(comparison)},
        "off_reasons": dict(comparison.controller.off_reasons),
        "share_of_steps_on": round(comparison.controller.on / len(comparison.controller.tokens), 4),
    }


def _policies(comparison: Comparison) -> list[tuple[str, Replayed]]:
    best = comparison.best_k
    return [
        ("plain" if best else "plain (best)", comparison.plain),
        *(
            (f"K={k}" + (" (best)" if k == best else ""), run)
            for k, run in sorted(comparison.fixed.items())
        ),
        ("controller", comparison.controller),
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("recording", type=Path, nargs="+", help="of --record-rounds")
    parser.add_argument("--schedule", help="[[first, last, K], ...] for the controller")
    parser.add_argument("--concurrency", type=_count, help="sequences at once  [as recorded]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be 1 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
