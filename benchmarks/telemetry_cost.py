"""What `--trace-level summary` costs in tokens a second, to a part of a percent.

    python -m benchmarks.telemetry_cost --minutes 12

One `outrider serve` answers by turns with and without tracing, as each request's `traceparent`
says, at each number of clients. The report is written after each quad of turns: what is interrupted
keeps what it has.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.outrider_system import OutriderServer
from benchmarks.processor_time import Reading, read
from benchmarks.prompts import Prompt, load_set
from benchmarks.soak_watch import Watch
from benchmarks.systems import Work
from benchmarks.telemetry_asking import LEAD_SECONDS, Asker
from benchmarks.telemetry_figures import as_cost, level_of
from benchmarks.telemetry_page import NAME, CostReport
from benchmarks.telemetry_turns import Turn, orders
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.errors import OperationError
from outrider.model_folders import resolve_model

MAX_PROMPT_TOKENS = 512
LEAD_TOKENS = 8
# The n-gram proposer that `outrider serve` starts, but every draft is verified.
PROPOSER = {
    "method": "ngram",
    "num_speculative_tokens": 8,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 5,
    "enable_adaptive_verification": False,
}


def works(prompts: Iterator[Prompt], clients: int, tokens: int, windows: int) -> list[Work]:
    """One work for each window, with the next prompts; greedy."""
    return [
        Work(
            tuple(prompt.token_ids for prompt in itertools.islice(prompts, clients)),
            (tokens,) * clients,
            temperature=0.0,
            seed=0,
        )
        for _ in range(windows)
    ]


@dataclass(slots=True)
class Session:
    """One running server, and in which mode how many clients asked it last."""

    asker: Asker
    watch: Watch
    prompts: Iterator[Prompt]
    options: argparse.Namespace
    cores: int
    last: tuple[int, bool] | None = None

    def quad(self, number: int, clients: int, order: Sequence[bool]) -> Iterator[Turn]:
        """The turns of one quad, all over the same prompts."""
        options = self.options
        windows = works(self.prompts, clients, options.new_tokens, options.windows)
        leads = works(self.prompts, clients, LEAD_TOKENS, 2)
        for traced in order:
            if self.last != (clients, traced):
                self.asker.lead(leads, traced)
            self.last = (clients, traced)
            yield self.asker.turn(windows, traced, number, self.read, self.cores)

    def warm(self, modes: Sequence[bool]) -> None:
        """The first requests of a server are slower than all others."""
        for clients in self.options.clients:
            for traced in modes:
                for work in works(self.prompts, clients, self.options.new_tokens, 1):
                    self.asker.answer(work, traced)

    def idle_ms(self) -> float:
        """Processor milliseconds a second while nothing is asked."""
        time.sleep(LEAD_SECONDS)
        before, began = self.read(), time.perf_counter()
        time.sleep(self.options.idle_seconds)
        spent = self.read().since(before, self.cores)
        services = {service.name for service in self.watch.services()}
        total = sum(ms for name, ms in spent.items() if name in services)
        return total / (time.perf_counter() - began)

    def read(self) -> Reading:
        return read(self.watch)


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> bool:
    path = options.out / f"{NAME}.json"
    if options.render:
        CostReport.load(path).write(options.out)
        return True
    until = time.monotonic() + options.minutes * 60
    cores = len(os.sched_getaffinity(0))
    model = resolve_model(options.model, ModelStore(cache_directory()), refuse_to_pull).folder
    report = replace(
        CostReport(),
        command=public_command(
            "benchmarks.telemetry_cost", arguments, {"--model": "MODEL", "--out": "OUT"}
        ),
        machine=describe_machine(),
        versions=versions(["outrider", "torch", "opentelemetry-sdk", "duckdb"]),
        settings=_settings(options),
        cores=cores,
        two_servers=CostReport.load(path).two_servers,
    )
    prompts = _prompts(model, options.prompts)
    if options.idle_seconds:
        with _serving(model, "none", options, prompts, cores) as session:
            session.warm([False])
            report = replace(report, idle={"none": session.idle_ms()})
    with _serving(model, "summary", options, prompts, cores) as session:
        session.warm([False, True])
        if options.idle_seconds:
            report = replace(report, idle={**report.idle, "summary": session.idle_ms()})
        for turns in _quads(session, until):
            report = replace(report, turns=(*report.turns, *turns))
            report.write(options.out)
            console.print(_line(report, turns[0].clients), markup=False, soft_wrap=True)
        traced, received = session.asker.traced, session.asker.received()
    replace(report, traced=traced, received=received).write(options.out)
    if received != traced:
        raise OperationError(f"{traced} requests were traced, the evidence has {received}")
    return True


def _quads(session: Session, until: float) -> Iterator[list[Turn]]:
    """Quads at each number of clients by turns, while there is time for another one."""
    options = session.options
    order = {clients: orders(options.seed + clients) for clients in options.clients}
    longest = dict.fromkeys(options.clients, 0.0)
    for number, clients in enumerate(itertools.cycle(options.clients)):
        began = time.monotonic()
        if began + longest[clients] > until:
            return
        yield list(session.quad(number, clients, next(order[clients])))
        longest[clients] = max(longest[clients], time.monotonic() - began)


@contextmanager
def _serving(
    model: Path, level: str, options: argparse.Namespace, prompts: Iterator[Prompt], cores: int
) -> Iterator[Session]:
    """`outrider serve` at one trace level, with an evidence file of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = OutriderServer(
            str(model),
            folder / "serve.log",
            max_num_seqs=max(options.clients),
            speculative_config=[PROPOSER],
            extra=[
                f"--trace-level={level}",
                f"--evidence-db={folder / 'evidence.duckdb'}",
                "--plain-share=0",
                *options.serve_option,
            ],
        )
        running = stack.enter_context(server)
        asker = stack.enter_context(Asker(running.url, max(options.clients)))
        yield Session(asker, Watch(running.pid), prompts, options, cores)


def _prompts(model: Path, count: int) -> Iterator[Prompt]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
    return itertools.cycle(load_set("edits", Path(), tokenizer, count, MAX_PROMPT_TOKENS))


def _settings(options: argparse.Namespace) -> dict[str, str]:
    return {
        "proposer": f"ngram, K={PROPOSER['num_speculative_tokens']}",
        "prompts": f"{options.prompts} of the set edits, temperature 0, nothing cached",
        "new tokens": f"{options.new_tokens} a request",
        "windows": f"{options.windows} a turn",
        "seed": str(options.seed),
    }


def _line(report: CostReport, clients: int) -> str:
    level = level_of(report.turns, clients)
    assert level is not None
    shown = level.change or level.unfiltered
    interval = ""
    if shown.low is not None and shown.high is not None:
        interval = f" ({as_cost(shown.high):+.2%} to {as_cost(shown.low):+.2%})"
    return (
        f"clients {clients}: cost {as_cost(shown.value):+.2%}{interval}, "
        f"{level.change.count if level.change else 0} undisturbed pairs of "
        f"{level.unfiltered.count}; {level.speed:.1f} tokens/s untraced, {level.window_s:.1f} s a "
        f"window: {level.verdict}"
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.telemetry_cost",
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--clients", type=_numbers, default=[1, 8], help="comma-separated")
    add("--minutes", type=float, default=12, help="no quad is begun that would end later")
    add("--windows", type=_positive, default=3, help="of a turn")
    add("--new-tokens", type=_positive, default=48, help="of a request")
    add("--prompts", type=_positive, default=10, help="of the set edits")
    add("--idle-seconds", type=float, default=15, help="for the idle figures; 0: none")
    add("--seed", type=int, default=1, help="of the order of modes")
    add("--serve-option", action="append", default=[], help="further option of outrider serve")
    add("--out", type=Path, default=Path("docs/benchmarks"))
    add("--render", action="store_true", help="only make the page again, from the JSON in --out")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    console = Console(stderr=True, highlight=False)
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given)
    return end_with(lambda: run(options, given, console), console)


if __name__ == "__main__":
    sys.exit(main())
