"""The engine alone, in several configurations: what a step costs, and whether it is right.

    python -m benchmarks.gpu_engine --model FOLDER --configs base,int8,fp8,batch-invariant,eager

Knows the configurations and how they are run, one process after the other; gpu_engine_case.py
measures one. The report is written after each: one that fails is told with its error's first line,
and one that the report has already is not measured again (--again measures all).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.gpu_card import describe_card
from benchmarks.gpu_engine_page import EngineReport
from benchmarks.gpu_options import describe_model, names, numbers
from benchmarks.machine import describe_machine, public_command
from benchmarks.report_files import write_report
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDERS = {"--model": "MODEL", "--out": "OUT", "--logs": "LOGS", "--code": "CODE"}
# Name -> the verifier's settings that make it. What a row is compared with comes first.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "int8": {"quantization": "int8"},
    "fp8": {"quantization": "fp8"},
    "batch-invariant": {"batch_invariant": True},
    "eager": {"enforce_eager": True, "compile": False},
    "uncaptured-prefill": {"max_captured_prefill_tokens": 0},
}
SHAPES = "1x1,1x2,1x5,1x9,8x1,8x5,32x1,32x5,128x1,128x5"
# What tells compilers where to keep their code -> the folder's name.
CODE_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}

# Runs one case: its JSON argument, the environment to add, where its log goes, seconds at most.
RunCase = Callable[[dict[str, Any], Mapping[str, str], Path, float], dict[str, Any]]


class CaseFailed(Exception):
    """A configuration could not be measured; the message is its error's first line."""


def run_case(
    bench: dict[str, Any], environment: Mapping[str, str], log: Path, seconds: float
) -> dict[str, Any]:
    """One configuration in a process of its own. Raises CaseFailed."""
    assignments = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", *assignments, sys.executable, "-m", "benchmarks.gpu_engine_case"]
    with log.open("wb") as err:
        try:
            done = subprocess.run(
                [*command, json.dumps(bench)],
                stdout=subprocess.PIPE,
                stderr=err,
                cwd=ROOT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CaseFailed(f"took longer than {seconds:.0f} s") from None
    if done.returncode or not done.stdout.strip():
        raise CaseFailed(last_error(log.read_text(errors="replace"), done.returncode))
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def code_caches(folder: Path) -> dict[str, str]:
    """The environment in which compiled code is kept in `folder`, which must not move."""
    return {name: str(folder.absolute() / part) for name, part in CODE_CACHES.items()}


def last_error(log: str, code: int) -> str:
    """The line of a traceback that says what happened; else the log's last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line[:1].isalpha() and "Error" in line.partition(":")[0]]
    said = (errors or lines or ["no output"])[-1]
    return f"{said[:300]} (exit code {code})"


def measure(
    options: argparse.Namespace,
    report: EngineReport,
    bench: Mapping[str, Any],
    logs: Path,
    console: Console,
    case: RunCase = run_case,
) -> EngineReport:
    """All configurations that the report has not; it is written after each."""
    environment = {} if options.code is None else code_caches(options.code)
    commit = report.machine.get("commit", "").rpartition(", ")[2]
    for name in options.configs:
        log = logs / f"engine-{name}.log"
        if is_whole(report.results.get(name)):
            console.print(f"{name}: measured already")
            continue
        console.print(f"{name}: starting")
        asked = {**bench, "settings": dict(CONFIGS[name])}
        result: dict[str, Any] = {"commit": commit}
        try:
            if options.code is not None and not options.code.exists():
                # The first start fills the folder, the second one finds it full.
                cold = case({**asked, "start_only": True}, environment, log, options.seconds)
                result["cold_start_seconds"] = cold["start_seconds"]
            result |= case(asked, environment, log, options.seconds)
        except CaseFailed as error:
            result["error"] = str(error)
            console.print(f"{name}: failed: {error}", markup=False, soft_wrap=True)
        report = replace(report, results={**report.results, name: result})
        write_report(report, options.out, options.name)
    report = replace(report, complete=True)
    write_report(report, options.out, options.name)
    return report


def is_whole(result: Mapping[str, Any] | None) -> bool:
    """Whether a configuration was measured and no part of it failed."""
    return result is not None and "error" not in result and not result.get("errors")


def resumed(report: EngineReport, path: Path) -> EngineReport:
    """The report with what an earlier one of the same machine and settings has measured.

    Commits may differ, as a run may go on after a correction: each result tells its own. Raises
    ValueError where machine or settings do.
    """
    if not path.exists():
        return report
    earlier = EngineReport.from_json(json.loads(path.read_text()))
    alike = all(earlier.machine.get(name) == report.machine.get(name) for name in ("gpu", "cpu"))
    if not alike or earlier.settings != report.settings:
        raise ValueError(
            f"--out: {path.name} there is of another machine or setting; --again replaces it"
        )
    return replace(
        report,
        command=_each_once(earlier.command, report.command, " ; "),
        machine={
            **report.machine,
            "commit": _each_once(
                earlier.machine.get("commit", ""), report.machine.get("commit", ""), ", "
            ),
        },
        results=earlier.results,
    )


def _each_once(earlier: str, now: str, between: str) -> str:
    return between.join(dict.fromkeys(one for one in [*earlier.split(between), now] if one))


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> None:
    store = ModelStore(cache_directory())
    model = resolve_model(options.model, store, refuse_to_pull, "--model").folder
    bench = {
        "model": str(model),
        "device": options.device,
        "dtype": options.dtype,
        "shapes": options.shapes,
        "prefills": options.prefills,
        "context": options.context,
        "max_model_len": options.max_model_len,
        "max_num_seqs": max([sequences for sequences, _ in options.shapes]),
        "num_speculative_tokens": options.num_speculative_tokens,
        "calls": options.calls,
        "new_tokens": options.new_tokens,
    }
    shown = {name: str(value) for name, value in bench.items() if name not in ("model", "shapes")}
    report = EngineReport(
        command=public_command("benchmarks.gpu_engine", arguments, PLACEHOLDERS),
        machine={
            **describe_machine(),
            **(describe_card() if options.device == "cuda" else {}),
        },
        settings={**describe_model(model), **shown},
    )
    if not options.again:
        report = resumed(report, options.out / f"{options.name}.json")
    with ExitStack() as stack:
        logs = options.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs.mkdir(parents=True, exist_ok=True)
        report = measure(options, report, bench, logs, console)
    console.print(report.to_markdown(), markup=False, soft_wrap=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_engine",
        description="What a step of the engine costs, and whether it is right.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--configs", type=names, default=["base"], help=f"of {', '.join(CONFIGS)}")
    add("--shapes", type=shapes, default=shapes(SHAPES), help="SEQUENCESxTOKENS, …")
    add("--prefills", type=numbers(int), default=[64, 512, 2048], help="prompt lengths")
    add("--context", type=int, default=512, help="tokens before each step")
    add("--max-model-len", type=int, default=4096)
    add("--num-speculative-tokens", type=int, default=8)
    add("--calls", type=int, default=15, help="timed, of each shape and choice")
    add("--new-tokens", type=int, default=24, help="of the answers that are checked")
    add("--seconds", type=float, default=240, help="one configuration may take")
    add("--code", type=Path, help="folder of compiled code; missing: a cold start fills it first")
    add("--again", action="store_true", help="measure what the report has, too")
    add("--out", type=Path, default=Path("docs/benchmarks"))
    add("--name", default="gpu_engine", help="of the files, without ending")
    add("--logs", type=Path, help="folder to keep the logs in")
    options = parser.parse_args(arguments)
    for name in options.configs:
        if name not in CONFIGS:
            parser.error(f"--configs: {name!r} is not one of {', '.join(CONFIGS)}")
    return options


def shapes(text: str) -> list[tuple[int, int]]:
    """`8x5,…`: sequences and the tokens of each. Raises ArgumentTypeError."""
    found = []
    for part in text.split(","):
        sequences, _, tokens = part.strip().partition("x")
        if not (sequences.isdigit() and tokens.isdigit() and int(sequences) and int(tokens)):
            raise argparse.ArgumentTypeError(f"{part!r}: wanted SEQUENCESxTOKENS, such as 8x5")
        found.append((int(sequences), int(tokens)))
    return found


def main() -> int:
    console = Console(stderr=True)
    arguments = sys.argv[1:]
    options = parse(arguments)

    def work() -> bool:
        run(options, arguments, console)
        return True

    return end_with(work, console)


if __name__ == "__main__":
    raise SystemExit(main())
