"""Microseconds of a step besides its forward, by part: what the host does between two forwards.

    python -m benchmarks.step_host --json step_host.json

Knows loads and how to show what was read; the loop that is measured is step_laps.py's, the edge
step_edge.py's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.machine import describe_machine
from benchmarks.step_edge import EdgeReading, read_edge
from benchmarks.step_laps import SHOWN, Laps, Load, measure
from outrider import garbage

K = 4
# What of each step is told.
_TOLD = (*SHOWN, "all", "meanwhile")
# Steps that are left out at the beginning of a run: the controller learns what asking costs.
_WARM_UP = 64
_CLOCKS: dict[str, Callable[[], int]] = {
    "wall": time.perf_counter_ns,
    "thread": time.thread_time_ns,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """Medians of one load's steps in microseconds, by part; `steps` of them were counted.

    `meanwhile` is what the host does while the device works, no part of `total`.
    """

    sequences: int
    drafts: bool
    temperature: float
    context: int
    steps: int
    parts: dict[str, float]
    total: float
    meanwhile: float


def read(
    load: Load, steps: int, clock: Callable[[], int], runs: int, *, awake: bool = False
) -> Reading:
    """Medians of the steps of one run, of `runs` the one that was disturbed least.

    Where drafts are on, these are steps that verify some behind steps that did; else neither did.
    RuntimeError where no step was of that kind.
    """
    readings = [_run(load, steps, clock, seed, awake) for seed in range(1, runs + 1)]
    medians, counted = min(readings, key=lambda reading: reading[0]["all"])
    medians = {name: round(value, 1) for name, value in medians.items()}
    return Reading(
        load.sequences,
        load.drafts > 0,
        load.temperature,
        load.context,
        counted,
        {name: medians[name] for name in SHOWN},
        medians["all"],
        medians["meanwhile"],
    )


def _run(
    load: Load, steps: int, clock: Callable[[], int], seed: int, awake: bool
) -> tuple[dict[str, float], int]:
    laps = Laps(clock, steps + _WARM_UP)
    measure(load, laps, seed=seed, awake=awake)
    wanted = load.drafts > 0
    kept = [
        {**spent, "all": sum(spent.get(name, 0) for name in SHOWN)}
        for before, behind, spent in laps.steps[_WARM_UP:]
        if (before > 0) == wanted and (behind > 0) == wanted
    ]
    if not kept:
        raise RuntimeError(f"{load}: no step {'with' if wanted else 'without'} drafts was seen")
    return {name: median(spent.get(name, 0) for spent in kept) / 1e3 for name in _TOLD}, len(kept)


def table(readings: Sequence[Reading]) -> str:
    """The readings as Markdown."""
    heads = ["sequences", "drafts", "T", "context", *SHOWN, "all", "meanwhile"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for one in readings:
        cells = [
            str(one.sequences),
            "yes" if one.drafts else "no",
            f"{one.temperature:g}",
            str(one.context),
            *(f"{one.parts[name]:.0f}" for name in SHOWN),
            f"{one.total:.0f}",
            f"{one.meanwhile:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def edge_table(readings: Sequence[EdgeReading]) -> str:
    """The edge's readings as Markdown."""
    lines = ["| tokens of an output | streamed | told at the end |", "|---|---|---|"]
    lines += [f"| {one.drafted + 1} | {one.streamed:.1f} | {one.whole:.1f} |" for one in readings]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_host")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300, help="steps of a run that are measured")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--clock",
        choices=sorted(_CLOCKS),
        default="wall",
        help="thread: processor time of the engine's thread, which others on the machine leave be",
    )
    parser.add_argument("--awake", action="store_true", help="forwards take no time")
    parser.add_argument("--json", type=Path, help="file for the readings")
    options = parser.parse_args(arguments)
    shown = console or Console()
    clock = _CLOCKS[options.clock]
    readings = []
    for drafts in (0, K):
        for temperature in options.temperatures:
            for sequences in options.sequences:
                load = Load(sequences, drafts, temperature, options.context)
                one = read(load, options.steps, clock, options.runs, awake=options.awake)
                readings.append(one)
    edge = [read_edge(drafted, clock, options.runs) for drafted in (0, K - 1)]
    shown.print(table(readings), markup=False, soft_wrap=True)
    shown.print(f"\n{edge_table(edge)}", markup=False, soft_wrap=True)
    if options.json is not None:
        report = {
            "machine": describe_machine(),
            "clock": options.clock,
            "microseconds": [asdict(one) for one in readings],
            "edge_microseconds": [asdict(one) for one in edge],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    # As the processes that are measured do once they are loaded.
    garbage.settle()
    sys.exit(main())
