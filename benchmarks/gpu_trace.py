"""A second of a running load as the card saw it: how idle it was, and what the host did meanwhile.

    python -m benchmarks.gpu_trace --model FOLDER --data SPEC_BENCH

Knows which loads are traced, and how; not what is marked in them. The report is written after each
load. A file for chrome://tracing is made of each only where --chrome says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.device_profile import profiled, warm_profiler
from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.gpu_card import describe_card
from benchmarks.gpu_idle import idle
from benchmarks.gpu_options import describe_model, names, numbers
from benchmarks.gpu_prompts import load_first_turns
from benchmarks.gpu_trace_load import Load, proposers, wait_connected
from benchmarks.gpu_trace_marks import engine_pieces, watched
from benchmarks.gpu_trace_page import Traced, TraceReport
from benchmarks.host_marks import Watched, marking
from benchmarks.machine import describe_machine, public_command
from benchmarks.report_files import write_report
from benchmarks.step_kinds import counting
from outrider import garbage, turns
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model
from verifier_service.backend import load_backend
from verifier_service.settings import VerifierSettings

PLACEHOLDERS = {
    "--model": "MODEL",
    "--data": "DATA",
    "--out": "OUT",
    "--logs": "LOGS",
    "--chrome": "CHROME",
}
MODES = ("plain", "both")
METHODS = ("ngram", "suffix")
ENGINE_THREAD = "engine"
LEAST_TOKENS = 4
# Clients from which on a load is traced at every temperature.
SEVERAL = 8


def loads(options: argparse.Namespace) -> list[tuple[str, float, int]]:
    """Mode, temperature and clients of each load, in order.

    Every one at the first temperature. What another costs shows where drafts are verified for
    several at once; the rest would take the card's time for nothing new.
    """
    first, *others = options.temperatures
    found = [(mode, first, count) for mode in options.modes for count in options.clients]
    for temperature in others:
        for mode in options.modes:
            found += [
                (mode, temperature, count)
                for count in options.clients
                if mode != "plain" and count >= SEVERAL
            ]
    return found


def trace(
    kinds: Sequence[Watched], load: Load, options: argparse.Namespace, mode: str
) -> tuple[Traced, list[str]]:
    """One load; the trace, and the methods that could not be marked. Raises ServerFailed."""
    chrome: Path | None = None
    if options.chrome is not None:
        options.chrome.mkdir(parents=True, exist_ok=True)
        name = f"trace-{mode}-{load.clients}-T{load.temperature:g}.json.gz"
        chrome = options.chrome / name
    from verifier_service.controller import Controller

    with load:
        load.wait_until_decoding(options.settle_tokens)
        account = _account(load)
        untraced, _ = _speed(load, options.seconds)
        own = _own_idle(account, _account(load))
        with (
            marking(kinds, ENGINE_THREAD) as host,
            counting(Controller) as steps,
            profiled(options.device, chrome) as profile,
        ):
            traced, counted = _speed(load, options.seconds)
        load.check()
        state = load.core.stats().speculation_state
    found = idle(profile, host.marks)
    made = Traced(
        mode=mode,
        clients=load.clients,
        temperature=load.temperature,
        untraced=round(untraced, 1),
        traced=round(traced, 1),
        verifying=round(counted / max(found.steps, 1), 3),
        speculation=state,
        own_idle=own,
        steps=steps,
        idle=found,
    )
    return made, host.missing


def _speed(load: Load, seconds: float) -> tuple[float, int]:
    """Tokens a second in the next `seconds` or more, and how many rounds verified drafts.

    At least a few tokens of each client are waited for, however slow they are.
    """
    before, began = load.counts, time.perf_counter()
    load.wait_for_tokens(LEAST_TOKENS * load.clients)
    time.sleep(max(0.0, began + seconds - time.perf_counter()))
    now = load.counts.since(before)
    return now.tokens / (time.perf_counter() - began), now.rounds


def _account(load: Load) -> tuple[float, float | None]:
    """Now, and how long the device has worked by the engine's own account, in seconds."""
    return time.perf_counter(), load.core.stats().device_busy_s


def _own_idle(
    before: tuple[float, float | None], after: tuple[float, float | None]
) -> float | None:
    """The idle share between two looks; None where the engine keeps no account."""
    if before[1] is None or after[1] is None:
        return None
    return round(1 - (after[1] - before[1]) / (after[0] - before[0]), 4)


def settings(
    options: argparse.Namespace, model: Path, addresses: Sequence[str]
) -> VerifierSettings:
    return VerifierSettings(
        str(model),
        "",
        "target",
        proposers=tuple(addresses),
        num_speculative_tokens=options.num_speculative_tokens,
        device=options.device,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=max(options.clients),
        max_num_batched_tokens=options.max_num_batched_tokens,
        adaptive=not options.every_draft,
        compile=not options.enforce_eager,
        enforce_eager=options.enforce_eager,
    )


def run(options: argparse.Namespace, arguments: Sequence[str], console: Console) -> None:
    """Start the core once and trace all loads."""
    from benchmarks.transformers_system import load_tokenizer
    from verifier_service.engines.torch_engine import TorchEngine

    store = ModelStore(cache_directory())
    model = resolve_model(options.model, store, refuse_to_pull, "--model").folder
    longest = options.max_model_len - options.new_tokens - 1
    prompts = [
        prompt.token_ids
        for prompt in load_first_turns(
            options.data, load_tokenizer(model), max(options.clients), longest, "mixed"
        )
    ]
    report = TraceReport(
        command=public_command("benchmarks.gpu_trace", arguments, PLACEHOLDERS),
        machine={
            **describe_machine(),
            **(describe_card() if options.device == "cuda" else {}),
        },
        settings={
            **describe_model(model),
            "drafts": f"{' and '.join(METHODS)}, at most {options.num_speculative_tokens}, "
            + ("every one verified" if options.every_draft else "as the controller has it"),
            "dtype": options.dtype,
            "traced": f"{options.seconds:g} s of each load",
        },
    )
    with ExitStack() as stack:
        logs = options.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs.mkdir(parents=True, exist_ok=True)
        drafting = METHODS if "both" in options.modes else ()
        addresses = stack.enter_context(proposers(drafting, options.num_speculative_tokens, logs))
        began = time.monotonic()
        backend = load_backend(settings(options, model, addresses), uuid.uuid4().hex)
        stack.callback(backend.close)
        report = replace(report, start_seconds=round(time.monotonic() - began, 1))
        # As the engine's own process does.
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        turns.be_short()
        garbage.settle()
        warm_profiler(options.device)
        kinds = [*watched(TorchEngine, type(backend.source)), *engine_pieces()]
        wait_connected(backend.proposers, len(addresses))
        for mode, temperature, count in loads(options):
            load = Load(
                backend.core, prompts, count, temperature, options.new_tokens, mode != "plain"
            )
            made, missing = trace(kinds, load, options, mode)
            report = replace(
                report, traces=(*report.traces, made), missing=tuple(dict.fromkeys(missing))
            )
            write_report(report, options.out, options.name)
            console.print(
                f"{mode}, {count} clients, T={temperature:g}: idle {100 * made.idle.idle:.1f} %, "
                f"{made.untraced:.0f} tokens/s"
            )
        report = replace(report, complete=True)
        write_report(report, options.out, options.name)
    console.print(report.to_markdown(), markup=False, soft_wrap=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_trace",
        description="How idle the card is under a load, and what the host does meanwhile.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--data", type=Path, default=Path("data"), help="Spec-Bench's file or its folder")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--modes", type=names, default=list(MODES), help=f"of {', '.join(MODES)}")
    add("--clients", type=numbers(int), default=[1, 8, 32])
    add("--temperatures", type=numbers(float), default=[0.0, 1.0], help="all loads at the first")
    add("--num-speculative-tokens", type=int, default=8)
    add("--every-draft", action="store_true", help="verify every draft, whatever it costs")
    add("--seconds", type=float, default=1.0, help="traced of each load, and as many before it")
    add("--settle-tokens", type=int, default=16, help="of each answer before anything is timed")
    add("--new-tokens", type=int, default=1024, help="of each answer")
    add("--max-model-len", type=int, default=4096)
    add("--max-num-batched-tokens", type=int, default=8192)
    add("--enforce-eager", action="store_true", help="no torch.compile, no captured steps")
    add("--chrome", type=Path, help="folder for files that chrome://tracing reads")
    add("--out", type=Path, default=Path("docs/benchmarks"))
    add("--name", default="gpu_trace", help="of the files, without ending")
    add("--logs", type=Path, help="folder to keep the proposers' logs in")
    options = parser.parse_args(arguments)
    for mode in options.modes:
        if mode not in MODES:
            parser.error(f"--modes: {mode!r} is not one of {', '.join(MODES)}")
    if not 0 < options.new_tokens < options.max_model_len:
        parser.error("--new-tokens: must be above 0 and below --max-model-len")
    return options


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
