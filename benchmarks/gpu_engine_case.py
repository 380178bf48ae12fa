"""One engine alone: steps by shape and choice, prefill, start-up, and whether it is right.

    python -m benchmarks.gpu_engine_case '{"model": "FOLDER", "device": "cuda", ...}'

Knows `TorchEngine.run` and its settings; no server, no scheduler, no proposer. Runs in a process of
its own, so that a configuration that fails takes no other with it, and prints one JSON object.
`bench` options are `Bench`'s fields, `settings` those of VerifierSettings that are tried.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.device_profile import warm_profiler
from benchmarks.gpu_engine_sequences import Sequences, made_up, samplings
from benchmarks.gpu_engine_times import MS, on_device, spent

if TYPE_CHECKING:
    from verifier_service.engines.base import Chunk
    from verifier_service.engines.torch_engine import TorchEngine

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured: shapes are (sequences, tokens of each), lengths are tokens."""

    model: str
    device: str = "cuda"
    dtype: str = "bfloat16"
    settings: dict[str, Any] = field(default_factory=dict)
    shapes: tuple[tuple[int, int], ...] = ((1, 1), (1, 5))
    prefills: tuple[int, ...] = (64, 512, 2048)
    context: int = 512
    max_model_len: int = 4096
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 8192
    num_speculative_tokens: int = 8
    calls: int = 15
    new_tokens: int = 24
    start_only: bool = False

    @classmethod
    def from_json(cls, text: str) -> Bench:
        values = json.loads(text)
        shapes = tuple((n, q) for n, q in values.pop("shapes", ((1, 1), (1, 5))))
        prefills = tuple(values.pop("prefills", (64, 512, 2048)))
        return cls(**values, shapes=shapes, prefills=prefills)


def shapes(bench: Bench, rows: Sequences) -> list[tuple[int, int]]:
    """Those that the cache has room for and that drafts are long enough for."""
    longest = bench.num_speculative_tokens + 1
    return [(n, tokens) for n, tokens in bench.shapes if n <= rows.most and tokens <= longest]


def cases(bench: Bench, rows: Sequences, sequences: int, tokens: int) -> dict[str, list[Chunk]]:
    """A step of that shape with each choice."""
    return {
        name: [rows.verification(row, tokens, bench.context, sampling) for row in range(sequences)]
        for name, sampling in samplings().items()
    }


def fill(bench: Bench, engine: TorchEngine, rows: Sequences) -> None:
    """Give every sequence that a shape uses a context: zeros may be read faster than values."""
    greedy = samplings()["greedy"]
    for row in range(max((sequences for sequences, _ in shapes(bench, rows)), default=0)):
        ids = made_up(row, bench.context, engine.model.vocab_size)
        engine.run([rows.chunk(row, ids, 0, None, greedy)])


def decoding(bench: Bench, engine: TorchEngine, rows: Sequences) -> list[dict[str, Any]]:
    """One line a shape, with the times of each choice."""
    fill(bench, engine, rows)
    found = []
    for sequences, tokens in shapes(bench, rows):
        line: dict[str, Any] = {"sequences": sequences, "tokens": tokens}
        for name, chunks in cases(bench, rows, sequences, tokens).items():
            line[name] = spent(engine, chunks, bench.calls)
        if tokens == 1:
            line |= steadily(bench, engine, rows, sequences)
        found.append(line)
    return found


def kernels(bench: Bench, engine: TorchEngine, rows: Sequences) -> list[dict[str, Any]]:
    """What the device did in each of `decoding`'s lines, by choice; empty ones on a CPU."""
    warm_profiler(bench.device)
    return [
        on_device(engine, cases(bench, rows, sequences, tokens), bench.device)
        for sequences, tokens in shapes(bench, rows)
    ]


def steadily(bench: Bench, engine: TorchEngine, rows: Sequences, sequences: int) -> dict[str, Any]:
    """Milliseconds of a greedy plain step where each is begun before the host asks for it."""
    greedy = samplings()["greedy"]
    vocabulary = engine.model.vocab_size
    texts = [made_up(row, bench.context, vocabulary) for row in range(sequences)]
    rows.decode(texts, greedy, 4, ahead=True)
    began = time.perf_counter_ns()
    rows.decode(texts, greedy, 2 * bench.calls, ahead=True)
    return {"steady_ms": round((time.perf_counter_ns() - began) * MS / (2 * bench.calls), 3)}


def prefilling(bench: Bench, engine: TorchEngine, rows: Sequences) -> list[dict[str, Any]]:
    """A prompt alone, and the middle one beside as many decoding sequences as there is room for."""
    greedy = samplings()["greedy"]
    vocabulary = engine.model.vocab_size
    lengths = [length for length in bench.prefills if length <= bench.max_model_len]
    beside = min(rows.most - 1, 8)
    cases = [(length, 0) for length in lengths]
    if beside > 0 and lengths:
        cases.append((lengths[len(lengths) // 2], beside))
    found = []
    for length, others in cases:
        chunks = [rows.chunk(0, made_up(0, length, vocabulary), 0, 0, greedy)]
        chunks += [rows.verification(row, 1, bench.context, greedy) for row in range(1, others + 1)]
        line = {"tokens": length, "beside": others}
        found.append(line | spent(engine, chunks, max(3, bench.calls // 3)))
    return found


def start(bench: Bench) -> TorchEngine:
    from verifier_service.engines.torch_engine import TorchEngine
    from verifier_service.settings import VerifierSettings

    return TorchEngine(
        VerifierSettings(
            model=bench.model,
            listen="unused",
            served_model_name="target",
            device=bench.device,
            dtype=bench.dtype,
            max_model_len=bench.max_model_len,
            max_num_seqs=bench.max_num_seqs,
            max_num_batched_tokens=bench.max_num_batched_tokens,
            num_speculative_tokens=bench.num_speculative_tokens,
            **bench.settings,
        )
    )


def measure(bench: Bench) -> dict[str, Any]:
    """Everything of one configuration, as JSON values."""
    began = time.perf_counter()
    import torch

    imported = time.perf_counter()
    engine = start(bench)
    started = time.perf_counter()
    report: dict[str, Any] = {
        "import_seconds": round(imported - began, 1),
        "start_seconds": round(started - imported, 1),
        "forward": engine.model.extra.get("forward", ""),
        "torch": torch.__version__,
        "device_name": torch.cuda.get_device_name() if bench.device == "cuda" else "cpu",
    }
    if bench.device == "cuda":
        report["memory_gib"] = round(torch.cuda.memory_allocated() / 2**30, 1)
    if bench.start_only:
        engine.close()
        return report
    from benchmarks.gpu_engine_checks import Checks

    rows = Sequences(engine, bench.max_model_len)
    checks = Checks(engine, rows, bench.model, bench.num_speculative_tokens, bench.new_tokens)
    report["errors"] = {}
    # What fails in one part leaves the figures of the others worth having.
    for name, part in (
        ("checks", checks.all),
        ("decoding", lambda: decoding(bench, engine, rows)),
        ("prefill", lambda: prefilling(bench, engine, rows)),
        ("kernels", lambda: kernels(bench, engine, rows)),
    ):
        try:
            report[name] = part()
        except Exception as error:
            _log.exception("%s failed", name)
            report["errors"][name] = first_line(error)
    report["answers"] = checks.answers
    for line, seen in zip(report.get("decoding", ()), report.pop("kernels", ()), strict=False):
        for choice, times in seen.items():
            line[choice] |= times
    engine.close()
    return report


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def run(arguments: Sequence[str], channel: int) -> None:
    """Measure what the argument asks for; the report goes to the file descriptor `channel`."""
    report = measure(Bench.from_json(arguments[0]))
    with os.fdopen(channel, "w") as out:
        out.write(json.dumps(report) + "\n")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d ms %(name)s %(message)s")
    channel = os.dup(1)
    # What libraries print must not mix with the report.
    os.dup2(2, 1)
    run(sys.argv[1:], channel)


if __name__ == "__main__":
    main()
