"""Everything that is measured on a card, in the order of its worth, within a span of time.

    python -m benchmarks.gpu_session --model FOLDER --data SPEC_BENCH --out OUT --minutes 22

Knows the parts and how long each may take; the parts are the other benchmarks' commands, each in a
process of its own, and write their reports as they go. What was cut off lost nothing: the same
command goes on where the session stopped, and parts of several attempts become one page.
`--quick --device cpu` runs all of it in small.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.entry import end_with
from benchmarks.gpu_engine import code_caches
from benchmarks.gpu_options import names
from benchmarks.gpu_session_parts import parts
from benchmarks.merge import merge_gpu
from benchmarks.report_files import replace_text, write_report

ROOT = Path(__file__).resolve().parent.parent
STATE = "session.json"
# With less time than this no part is begun.
LEAST_SECONDS = 20.0
# What a part that is told to end needs to stop what it started.
STOP_SECONDS = 30.0
CUT_OFF = 124
PAGE = "gpu"

# Runs a command for so many seconds at most, with its log, and says how it ended.
RunPart = Callable[[Sequence[str], Path, float], int]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part ended: 0 is done, 124 cut off by the time."""

    code: int
    seconds: float
    attempts: int


def run_part(command: Sequence[str], log: Path, seconds: float) -> int:
    """The exit code; CUT_OFF where the time was over. Leaves no process of the command behind."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            list(command), stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return CUT_OFF
        finally:
            end_process(process)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Tell a process that leads its own group to end; then end whatever is left of the group.

    By SIGTERM, which the benchmarks take as Ctrl-C: a shell's background job ignores SIGINT.
    """
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        # Of the same process group: what a killed part could not stop itself.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run(
    options: argparse.Namespace,
    console: Console,
    run_one: RunPart = run_part,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """All parts that are wanted and not done; whether each of them is done now."""
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    state = read_state(out / STATE)
    done = {name for name, ended in state.items() if ended.code == 0 and not options.again}
    deadline = clock() + 60 * options.minutes
    wanted = [part for part in parts(options) if not options.parts or part.name in options.parts]
    for part in wanted:
        before = state.get(part.name)
        if part.name in done:
            console.print(f"== {part.name}: done already")
            continue
        left = deadline - clock()
        if left < LEAST_SECONDS:
            console.print(f"== {part.name}: no time left")
            continue
        attempt = 1 if before is None else before.attempts + 1
        began = clock()
        console.print(f"== {part.name}: at most {min(part.seconds, left):.0f} s")
        code = run_one(
            ["env", *assignments(options), *part.command(attempt)],
            out / f"session-{part.name}.log",
            min(part.seconds, left),
        )
        state[part.name] = Ended(code, round(clock() - began, 1), attempt)
        told = {name: asdict(ended) for name, ended in state.items()}
        replace_text(out / STATE, json.dumps(told, indent=1) + "\n")
        console.print(f"== {part.name}: exit code {code} after {clock() - began:.0f} s")
        if part.joins:
            join(out, part.joins, console)
        if part.needed and code:
            return False
    return all(part.name in state and state[part.name].code == 0 for part in wanted)


def assignments(options: argparse.Namespace) -> list[str]:
    """The environment that all parts have in common, beside the session's own."""
    kept = code_caches(options.code or options.out / "code")
    return [*(f"{name}={value}" for name, value in kept.items()), "PYTHONUNBUFFERED=1"]


def read_state(path: Path) -> dict[str, Ended]:
    """How the parts of earlier runs ended; empty where there was none."""
    if not path.exists():
        return {}
    document: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {name: Ended(**ended) for name, ended in document.items()}


def join(out: Path, prefixes: Sequence[str], console: Console) -> None:
    """One page of the reports whose names begin so, in the order of prefixes and attempts."""
    found = [path for prefix in prefixes for path in attempts(out, prefix)]
    if not found:
        return
    try:
        report = merge_gpu([json.loads(path.read_text()) for path in found])
    except ValueError as error:
        # Each part has its own page all the same.
        console.print(f"not joined: {error}", markup=False)
        return
    write_report(report, out, PAGE)


def attempts(out: Path, prefix: str) -> list[Path]:
    """`prefix`-1.json, `prefix`-2.json, … as far as they are there, in order."""
    found = [path for path in out.glob(f"{prefix}-*.json") if path.stem.split("-")[-1].isdigit()]
    return sorted(found, key=lambda path: int(path.stem.split("-")[-1]))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_session",
        description="Measure all there is on a card, the most telling first.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=Path, help="the target's folder; with --gguf made here")
    add("--gguf", type=Path, help="the small model, to make the checkpoints of")
    add("--padding", type=Path, help="script that writes the big checkpoint")
    add("--models", type=Path, help="folder for checkpoints that are made here")
    add("--data", type=Path, required=True, help="Spec-Bench's file or its folder")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--out", type=Path, required=True, help="folder for reports, logs and what was done")
    add("--code", type=Path, help="folder for compiled code; OUT/code by default")
    add("--chrome", type=Path, help="folder for files that chrome://tracing reads")
    add("--minutes", type=float, default=22, help="no part goes on longer")
    add("--repetitions", type=int, default=2, help="of the loads that bars are read from")
    add("--parts", type=names, default=[], help="only these, in their own order")
    add("--again", action="store_true", help="also what is done already")
    add("--peer-env", type=Path, help="shell file to source before vLLM's interpreter")
    add("--peer-python", help="vLLM's interpreter")
    add("--quick", action="store_true", help="everything in small, to try it")
    options = parser.parse_args(arguments)
    if options.gguf is not None and options.models is None:
        parser.error("--gguf needs --models")
    if options.model is None and options.gguf is None:
        parser.error("--model or --gguf is needed")
    known = [part.name for part in parts(options)]
    for name in options.parts:
        if name not in known:
            parser.error(f"--parts: {name!r} is not one of {', '.join(known)}")
    return options


def main() -> int:
    console = Console(stderr=True)
    options = parse(sys.argv[1:])
    return end_with(lambda: run(options, console), console)


if __name__ == "__main__":
    raise SystemExit(main())
