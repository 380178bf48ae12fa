"""`make exactness`: speculation changes not one token of a real model's output.

    python -m benchmarks.exactness [--prompts 4 --tokens 24 --k 4] [--served]

Knows the command line; the check itself is in exact_run.py. Exit code 0 if every output equals
plain decoding's or parts from it at a numerical tie, 1 if not, 2 for bad options.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.exact_cases import PROPOSER_SETS, Job, jobs, matrix
from benchmarks.exact_generators import InprocessGenerator, ServedGenerator
from benchmarks.exact_report import ExactReport
from benchmarks.exact_run import Check, Generator, Store
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.outrider_system import OutriderServer
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

PLACEHOLDERS = {"--model": "MODEL", "--out": "OUT", "--resume": "FILE"}
SPECULATIVE = [name for name in PROPOSER_SETS if name != "none"]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exactness",
        description="Compare speculative with plain decoding, token for token, in float32.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--prompts", type=int, default=40)
    add("--tokens", type=int, default=32, help="new tokens at most")
    add("--proposers", nargs="+", choices=SPECULATIVE, default=SPECULATIVE)
    add("--k", nargs="+", type=int, default=[1, 4, 8])
    add("--temperatures", nargs="+", type=float, default=[0.0, 0.7, 1.0])
    add("--clients", nargs="+", type=int, default=[1, 8])
    add("--served", action="store_true", help="through `outrider serve`: HTTP, gRPC, controller")
    add("--no-compile", action="store_true", help="run the model eagerly")
    add("--resume", type=Path, help="keep results in this file and go on with what it holds")
    add("--out", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args(arguments)
    if options.served and "adversary" in options.proposers:
        options.proposers = [name for name in options.proposers if name != "adversary"]
    return options


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> bool:
    """Run the matrix and write the report; whether it passed."""
    from benchmarks.plain_target import PlainTarget
    from benchmarks.transformers_system import load_tokenizer

    store = ModelStore(cache_directory())
    model = resolve_model(options.model, store, refuse_to_pull, "--model").folder
    work = jobs(load_tokenizer(model), options.prompts)
    cases = matrix(options.proposers, options.k, options.temperatures, options.clients)
    with ExitStack() as stack:
        check = Check(
            generator=_open_generator(options, model, stack),
            target=PlainTarget(model),
            jobs=work,
            max_tokens=options.tokens,
            store=Store(options.resume, signature(options, model, work)),
            say=lambda line: console.print(line, markup=False, highlight=False),
        )
        results = check.run(cases)
    report = ExactReport(
        command=public_command("benchmarks.exactness", arguments, PLACEHOLDERS),
        mode="through outrider serve" if options.served else "verifier core in process",
        machine=describe_machine(),
        versions=versions(["outrider", "torch", "transformers"]),
        settings={
            "model": model.name,
            "dtype": "float32",
            "prompts": str(options.prompts),
            "new tokens at most": str(options.tokens),
            "compiled": "no" if options.no_compile else "yes",
        },
        results=results,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    name = "exactness_served" if options.served else "exactness"
    (options.out / f"{name}.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    (options.out / f"{name}.md").write_text(report.to_markdown())
    console.print("passed" if report.passed else "FAILED", style="bold")
    return report.passed


def _open_generator(options: argparse.Namespace, model: Path, stack: ExitStack) -> Generator:
    if not options.served:
        return stack.enter_context(
            InprocessGenerator(
                model, max(options.k), max(options.clients), compile=not options.no_compile
            )
        )
    logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-exact-")))
    server = OutriderServer(
        str(model),
        logs / "outrider.log",
        dtype="float32",
        max_num_seqs=max(options.clients),
        speculative_config=[
            {
                "method": "ngram",
                "num_speculative_tokens": max(options.k),
                "prompt_lookup_min": 2,
                "prompt_lookup_max": 5,
            },
            {"method": "suffix", "num_speculative_tokens": max(options.k)},
        ],
        extra=["--no-compile"] if options.no_compile else [],
    )
    return ServedGenerator(stack.enter_context(server).url)


def signature(options: argparse.Namespace, model: Path, work: Sequence[Job]) -> dict[str, object]:
    """What the results depend on, but for the code: a changed verifier wants a new file."""
    digest = hashlib.sha256(repr([(job.prompt, job.seed) for job in work]).encode()).hexdigest()
    return {
        "model": hashlib.sha256((model / "config.json").read_bytes()).hexdigest(),
        "jobs": digest,
        "tokens": options.tokens,
        "served": options.served,
        "compile": not options.no_compile,
        "commit": describe_machine()["commit"],
    }


def main() -> int:
    console = Console(stderr=True)
    arguments = sys.argv[1:]
    options = parse(arguments)
    return end_with(lambda: run(options, arguments, console), console)


if __name__ == "__main__":
    raise SystemExit(main())
