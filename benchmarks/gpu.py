"""Tokens a second on a GPU: Outrider through its whole path, and vLLM, one after the other.

    python -m benchmarks.gpu --model FOLDER --data SPEC_BENCH --peer-env FILE

Knows how a run is put together: each engine is started, warmed, measured and stopped before the
next one starts. Writes the JSON and the page after every sweep, so that an interrupted run keeps
what it measured; runs of only some rows are put together by benchmarks.merge.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.bars import clients
from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.gpu_card import CardWatch, Samples, describe_card
from benchmarks.gpu_ceiling import StepCosts
from benchmarks.gpu_engines import Phase, plan_phases, watched
from benchmarks.gpu_options import (
    PLACEHOLDERS,
    describe_model,
    describe_settings,
    parse,
    prompts_at,
    prompts_needed,
    without_folders,
)
from benchmarks.gpu_prompts import load_first_turns
from benchmarks.gpu_report import NOTES, GpuReport
from benchmarks.machine import describe_machine, public_command
from benchmarks.measurements import Measurement, Measurements, tokens_a_second
from benchmarks.plan import Observer, Plan, Sweep, execute
from benchmarks.prompts import Prompt
from benchmarks.report_files import write_report
from benchmarks.systems import Row, Work
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

PROMPT_SET = "spec-bench"


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> None:
    """Measure all engines that the options ask for, and write the report."""
    from benchmarks.transformers_system import load_tokenizer

    store = ModelStore(cache_directory())
    model = resolve_model(options.model, store, refuse_to_pull, "--model").folder
    prompts = load_first_turns(
        options.data,
        load_tokenizer(model),
        prompts_needed(options),
        options.max_prompt_tokens,
        options.order,
    )
    on_card = options.device == "cuda"
    report = GpuReport(
        command=public_command("benchmarks.gpu", without_folders(options, arguments), PLACEHOLDERS),
        machine={**describe_machine(), **(describe_card() if on_card else {})},
        versions={},
        settings={**describe_model(model), **describe_settings(options)},
        measurements=Measurements(),
        step_costs=step_costs(options),
        notes=NOTES,
        complete=False,
    )
    with ExitStack() as stack:
        logs = options.logs or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-bench-"))
        )
        logs.mkdir(parents=True, exist_ok=True)
        samples = stack.enter_context(CardWatch()).samples if on_card else None
        phases = plan_phases(options, model, logs, options.rows)
        report = measure_phases(phases, options, prompts, report, samples, console)
    console.print(report.to_markdown(), markup=False, soft_wrap=True)


def measure_phases(
    phases: Sequence[Phase],
    options: argparse.Namespace,
    prompts: Sequence[Prompt],
    report: GpuReport,
    samples: Samples | None,
    console: Console,
) -> GpuReport:
    """One engine after the other; the finished report, which is written as well."""
    for phase in phases:
        console.print(f"starting {phase.name}")
        with ExitStack() as stack:
            opened = phase.open(stack)
            console.print(f"{phase.name} is ready after {opened.start_seconds:.0f} s")
            report = replace(
                report,
                complete=False,
                versions={**report.versions, **opened.versions},
                options={**report.options, phase.name: phase.options},
                starts={**report.starts, phase.name: opened.start_seconds},
                times={**report.times, phase.name: f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"},
                rows=(*report.rows, *(row.name for row in opened.rows)),
            )
            rows = opened.rows if samples is None else watched(opened.rows, samples)
            plan = make_plan(options, rows, prompts)
            warm_up(plan, options.warmup_tokens, console)
            measure(plan, report, options, console)
        console.print(f"{phase.name} has stopped")
    finished = replace(report, complete=True)
    write_report(finished, options.out, options.name)
    return finished


def step_costs(options: argparse.Namespace) -> StepCosts:
    """Of the engine's report, where one is given. Raises FileNotFoundError, ValueError."""
    if options.engine_table is None:
        return StepCosts()
    try:
        return StepCosts.from_engine_report(json.loads(options.engine_table.read_text()))
    except KeyError as error:
        raise ValueError(f"--engine-table: no report of benchmarks.gpu_engine: {error}") from error


def make_plan(
    options: argparse.Namespace, rows: tuple[Row, ...], prompts: Sequence[Prompt]
) -> Plan:
    return Plan(
        rows=rows,
        prompts={PROMPT_SET: prompts},
        clients=tuple(options.clients),
        temperatures=tuple(options.temperatures),
        prompts_per_set=options.prompts,
        new_tokens=options.new_tokens,
        repetitions=options.repetitions,
        minutes=options.minutes,
        seed=options.seed,
        prompts_at=prompts_at(options),
        even_lengths=True,
        hard_deadline=True,
    )


def warm_up(plan: Plan, new_tokens: int, console: Console) -> None:
    """Let every row compile, allocate and learn its costs before anything is timed."""
    if new_tokens < 1:
        return
    console.print("warming up")
    (prompts,) = plan.prompts.values()
    for temperature in plan.temperatures:
        for count in plan.clients:
            some = tuple(prompt.token_ids for prompt in prompts[:count])
            for row in plan.rows:
                if count not in row.clients or temperature not in row.temperatures:
                    continue
                lengths = (new_tokens,) * len(some)
                row.system.generate(Work(some, lengths, temperature, plan.seed, clients=count))


def measure(plan: Plan, report: GpuReport, options: argparse.Namespace, console: Console) -> None:
    """Run the plan, writing the report after every sweep."""
    expected = plan.repetitions * sum(
        len(list(plan.generations(sweep, 0))) for sweep in plan.sweeps()
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("measuring", total=expected)

        def starting(sweep: Sweep, row: Row, repetition: int) -> None:
            place = f"{clients(sweep.clients)}, T={sweep.temperature:g}"
            progress.update(task, description=f"({repetition + 1}) {place}: {row.name}")

        def measured(measurement: Measurement) -> None:
            report.measurements.add(measurement)
            progress.advance(task)

        def swept(sweep: Sweep, repetition: int) -> None:
            write_report(report, options.out, options.name)
            if not console.is_terminal:
                console.print(_line(report, sweep, repetition), markup=False, soft_wrap=True)

        execute(plan, Observer(starting, measured, swept))


def _line(report: GpuReport, sweep: Sweep, repetition: int) -> str:
    """What a sweep found, for a log that shows no progress bar."""
    items = [
        item
        for item in report.measurements.items
        if (item.clients, item.temperature, item.repetition)
        == (sweep.clients, sweep.temperature, repetition)
    ]
    rows = dict.fromkeys(item.row for item in items)
    speeds = {row: tokens_a_second(item for item in items if item.row == row) for row in rows}
    shown = ", ".join(f"{row} {speed:.1f}" for row, speed in speeds.items())
    place = f"{clients(sweep.clients)}, T={sweep.temperature:g}"
    return f"({repetition + 1}) {place}: {shown} tokens/s"


def main() -> int:
    console = Console(stderr=True)
    arguments = sys.argv[1:]
    options = parse(arguments)

    def work() -> bool:
        if options.render is not None:
            document = json.loads(options.render.read_text())
            report = GpuReport.from_json(document)
            if options.engine_table is not None:
                report = replace(report, step_costs=step_costs(options))
            write_report(report, options.out, options.name)
        else:
            run(options, arguments, console)
        return True

    return end_with(work, console)


if __name__ == "__main__":
    raise SystemExit(main())
