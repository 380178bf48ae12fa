"""Steps a second of an engine as a thread of the verifier and as a process of its own.

    python -m benchmarks.engine_process --model FOLDER --out DOCS/engine_process

The engine is `paced_engine.py`'s, all else is real: streaming clients over gRPC, detokenizing, the
scheduler. Clients are in this process, the verifier in another. `--model` is a folder with a
tokenizer; nothing else of it is read. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from speculation.v1 import verifier_pb2 as pb
from speculation.v1 import verifier_pb2_grpc

from benchmarks import engine_message
from benchmarks.machine import describe_machine, end_on_sigterm, public_command, versions
from benchmarks.paced_engine import DECODE, LAUNCH, MAX_MODEL_LEN, Pace

CASES: dict[str, Pace] = {"decode": DECODE, "launch": LAUNCH}
ENGINES = ("thread", "process")
_PROMPT = list(range(1000, 1032))
_START_S = 120.0
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One run: steps a second, mean milliseconds inside `run`, tokens a second at the clients."""

    case: str
    engine: str
    clients: int
    steps_per_s: float
    run_ms: float
    tokens_per_s: float


class Load:
    """So many clients, each streaming one answer after the other."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.begun = 0
        self.tokens = 0

    async def client(self) -> None:
        """Stream until cancelled."""
        first = True
        while True:
            request = pb.GenerateRequest(
                sampling=pb.SamplingParams(
                    temperature=0, ignore_eos=True, max_tokens=MAX_MODEL_LEN - len(_PROMPT)
                )
            )
            request.token_ids.ids.extend(_PROMPT)
            async for message in self._stub.Generate(request):
                if first and message.HasField("delta"):
                    self.begun, first = self.begun + 1, False
                self.tokens += len(message.delta.token_ids)


async def measure(
    case: str, engine: str, clients: Sequence[int], seconds: float, model: Path
) -> list[Reading]:
    """Start a verifier, and read it for `seconds` under each number of clients."""
    async with _verifier(case, engine, model) as stub:
        return [await _read(stub, case, engine, number, seconds) for number in clients]


async def _read(stub: Any, case: str, engine: str, clients: int, seconds: float) -> Reading:
    load = Load(stub)
    tasks = [asyncio.create_task(load.client()) for _ in range(clients)]
    while load.begun < clients:
        await asyncio.sleep(0.05)
        for task in tasks:
            if task.done():
                task.result()
    await asyncio.sleep(_SETTLE_S)
    loop = asyncio.get_running_loop()
    before, begun, tokens = await _plain(stub), loop.time(), load.tokens
    await asyncio.sleep(seconds)
    after, ended = await _plain(stub), loop.time()
    tokens = load.tokens - tokens
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    steps, passed = after[0] - before[0], ended - begun
    run_ms = (after[1] - before[1]) / steps * 1e3
    reading = Reading(case, engine, clients, steps / passed, run_ms, tokens / passed)
    sys.stderr.write(f"{reading}\n")
    return reading


async def _plain(stub: Any) -> tuple[int, float]:
    """Decoding steps since start, and the seconds that they took."""
    times = (await stub.GetInfo(pb.GetInfoRequest())).step_times.plain
    return sum(times.counts), times.sum


@asynccontextmanager
async def _verifier(case: str, engine: str, model: Path) -> AsyncIterator[Any]:
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        address = f"unix:{folder}/v.sock"
        command = [sys.executable, "-m", "benchmarks.paced_verifier"]
        options = [f"--case={case}", f"--engine={engine}", f"--listen={address}"]
        process = subprocess.Popen([*command, *options, f"--model={model}"])
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                async with asyncio.timeout(_START_S):
                    await channel.channel_ready()
                yield verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def page(report: dict[str, Any]) -> str:
    """The report in Markdown."""
    machine = "; ".join(f"{key} {value}" for key, value in report["machine"].items())
    software = "; ".join(f"{key} {value}" for key, value in report["versions"].items())
    lines = [
        "# The engine in a process of its own",
        "",
        f"`{report['command']}`",
        "",
        f"- Machine: {machine}. Clients, front and engine share its cores.",
        f"- Versions: {software}",
        f"- {report['seconds']:g} s a cell, fastest of {report['repetitions']} rounds in turns:"
        " others use the machine, too.",
        "- The engine computes nothing. A `decode` step waits 7 ms with Python's lock let go, a",
        "  `launch` step runs 10 ms of bytecode before that, as launching a prefill does.",
        "",
        "| case | clients | steps/s, thread | process | ratio | ms in `run`, thread | process |"
        " tokens/s, thread | process |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        thread, apart = row["thread"], row["process"]
        lines.append(
            f"| {row['case']} | {row['clients']} "
            f"| {thread['steps_per_s']:.1f} | {apart['steps_per_s']:.1f} "
            f"| {apart['steps_per_s'] / thread['steps_per_s']:.2f} "
            f"| {thread['run_ms']:.1f} | {apart['run_ms']:.1f} "
            f"| {thread['tokens_per_s']:.0f} | {apart['tokens_per_s']:.0f} |"
        )
    lines += ["", *engine_message.lines(report["message"]), ""]
    return "\n".join(lines)


def rows(readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """One for each case and number of clients: each engine's reading that was disturbed least."""
    cells: dict[tuple[str, int], dict[str, list[Reading]]] = {}
    for reading in readings:
        cell = cells.setdefault((reading.case, reading.clients), {})
        cell.setdefault(reading.engine, []).append(reading)
    return [
        {"case": case, "clients": clients}
        | {
            engine: asdict(max(found, key=lambda reading: reading.steps_per_s))
            for engine, found in cell.items()
        }
        for (case, clients), cell in cells.items()
    ]


async def _measure_all(options: argparse.Namespace) -> list[Reading]:
    readings = []
    for _ in range(options.repetitions):
        for case in options.cases:
            for engine in ENGINES:
                readings += await measure(
                    case, engine, options.clients, options.seconds, options.model
                )
    return readings


def main(arguments: Sequence[str] | None = None) -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_process")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    readings = asyncio.run(_measure_all(options))
    report = {
        "command": public_command(
            "benchmarks.engine_process", given, {"--model": "MODEL", "--out": "OUT"}
        ),
        "machine": describe_machine(),
        "versions": versions(("outrider", "grpcio", "transformers")),
        "seconds": options.seconds,
        "repetitions": options.repetitions,
        "rows": rows(readings),
        "readings": [asdict(reading) for reading in readings],
        "message": engine_message.measure(),
    }
    options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
