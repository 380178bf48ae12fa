"""`make soak`: many clients that ask for everything at once, and nothing may break or leak.

    python -m benchmarks.soak [--minutes 10 --clients 32] [--tiny] [--out docs/benchmarks]

Knows the command line and how the server is started; the soak itself is in soak_run.py. Exit code
0 if it passed, 1 if not, 2 for bad options. With --out it writes soak.json and soak.md there,
otherwise it prints the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.divergence import Logits
from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.outrider_system import OutriderServer
from benchmarks.soak_draw import MIN_MODEL_LEN
from benchmarks.soak_report import SoakReport
from benchmarks.soak_run import Soak, SoakResult, SoakSettings
from benchmarks.soak_server import SoakedServer
from benchmarks.tiny_model import make_tiny_model
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

if TYPE_CHECKING:
    from benchmarks.plain_target import PlainTarget

PLACEHOLDERS = {"--model": "MODEL", "--out": "OUT", "--log": "LOG"}
_COMPLAINT = re.compile(r"Traceback|unexpected error|\bERROR\b|\bCRITICAL\b|never awaited")
_KEPT_COMPLAINTS = 20


class LazyTarget:
    """A `divergence.Target` that is loaded when it is first asked: most soaks never do."""

    def __init__(self, model: Path) -> None:
        self._folder = model

    @cached_property
    def _target(self) -> PlainTarget:
        from benchmarks.plain_target import PlainTarget

        return PlainTarget(self._folder)

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        return self._target.logits(ids, first)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description="Load a server with everything a request may ask for; nothing may break or "
        "leak, and speculation may change no token.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--tiny", action="store_true", help="a tiny random model instead, for short runs")
    add("--minutes", type=_positive(float), default=10.0)
    add("--clients", type=_positive(int), default=32)
    add("--seed", type=int, default=1, help="of the requests")
    add("--kill-seconds", type=float, default=6.0, help="mean time between two kills; 0: none")
    add("--replay-every", type=_positive(int), default=50, help="of the completed seeded answers")
    add("--hang-seconds", type=_positive(float), default=300.0, help="a request takes no longer")
    add("--sample-seconds", type=_positive(float), default=1.0)
    add("--max-model-len", type=int, default=2048)
    add("--kv-cache-memory-bytes", type=int, help="small: sequences are preempted")
    add("--speculative-config", type=json.loads, default=[], help="for outrider serve, a list")
    add("--serve-option", action="append", default=[], help="further option of outrider serve")
    add("--log", type=Path, help="keep the server's log in this file")
    add("--out", type=Path, help="folder for soak.json and soak.md")
    options = parser.parse_args(arguments)
    if options.max_model_len < MIN_MODEL_LEN:
        parser.error(f"--max-model-len: {options.max_model_len} is less than {MIN_MODEL_LEN}")
    return options


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> bool:
    """Soak and report; whether it passed."""
    with tempfile.TemporaryDirectory(prefix="outrider-soak-") as temporary:
        folder = Path(temporary)
        model = _model(options, folder)
        log = options.log or folder / "outrider.log"
        server = OutriderServer(
            str(model),
            log,
            dtype="float32",
            max_num_seqs=options.clients,
            speculative_config=options.speculative_config,
            extra=_serve_options(options),
        )
        with server:
            result = asyncio.run(_soak(server, model, options, console))
        complaints = [
            line for line in log.read_text(errors="replace").splitlines() if _COMPLAINT.search(line)
        ]
    report = SoakReport(
        command=public_command("benchmarks.soak", arguments, PLACEHOLDERS),
        machine=describe_machine(),
        versions=versions(["outrider", "torch", "transformers", "grpcio", "xgrammar"]),
        settings=_settings_shown(options, model),
        result=result,
        log_complaints=complaints[:_KEPT_COMPLAINTS],
        kills_expected=options.kill_seconds > 0,
    )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "soak.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
        (options.out / "soak.md").write_text(report.to_markdown())
    else:
        console.print(report.to_markdown(), markup=False, highlight=False)
    for failure in result.tally.failures:
        console.print(f"failed: {failure.what}", style="red", markup=False)
    console.print("passed" if report.passed else "FAILED", style="bold")
    return report.passed


async def _soak(
    server: OutriderServer, model: Path, options: argparse.Namespace, console: Console
) -> SoakResult:
    settings = SoakSettings(
        seconds=options.minutes * 60,
        clients=options.clients,
        seed=options.seed,
        kill_seconds=options.kill_seconds,
        replay_every=options.replay_every,
        hang_seconds=options.hang_seconds,
        sample_seconds=options.sample_seconds,
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("asking once for each kind", total=settings.seconds)

        def show(at: float, result: SoakResult) -> None:
            tally = result.tally
            bar.update(
                task,
                completed=at,
                description=f"{tally.requests} requests, {tally.num_failures} failed, "
                f"{sum(tally.replays.values())} re-run, {sum(result.kills.values())} kills",
            )

        soaked = SoakedServer(server.url, server.pid)
        return await Soak(soaked, settings, LazyTarget(model), show).run()


def _model(options: argparse.Namespace, folder: Path) -> Path:
    if options.tiny:
        return make_tiny_model(folder / "tiny", max_model_len=options.max_model_len)
    store = ModelStore(cache_directory())
    return resolve_model(options.model, store, refuse_to_pull, "--model").folder


def _serve_options(options: argparse.Namespace) -> list[str]:
    extra = ["--max-model-len", str(options.max_model_len), *options.serve_option]
    if options.tiny:
        # More threads would wait for each other longer than they compute.
        extra += ["--no-compile", "--threads", "1"]
    if options.kv_cache_memory_bytes is not None:
        extra += ["--kv-cache-memory-bytes", str(options.kv_cache_memory_bytes)]
    return extra


def _settings_shown(options: argparse.Namespace, model: Path) -> dict[str, str]:
    return {
        "model": "tiny random Llama" if options.tiny else model.name,
        "dtype": "float32",
        "minutes": f"{options.minutes:g}",
        "clients": str(options.clients),
        "seed": str(options.seed),
        "seconds between kills": f"{options.kill_seconds:g}",
        "re-run every": f"{options.replay_every} completed seeded answers",
        "longest request": f"{options.hang_seconds:g} s",
        "context": f"{options.max_model_len} tokens",
        "KV cache": str(options.kv_cache_memory_bytes or "default"),
        "speculative config": json.dumps(options.speculative_config or "default"),
    }


def _positive(kind: type[float] | type[int]) -> Callable[[str], float]:
    def positive(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text}: must be above 0")
        return value

    return positive


def main() -> int:
    console = Console(stderr=True)
    arguments = sys.argv[1:]
    options = parse(arguments)
    return end_with(lambda: run(options, arguments, console), console)


if __name__ == "__main__":
    raise SystemExit(main())
