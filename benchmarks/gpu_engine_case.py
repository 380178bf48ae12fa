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
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.device_profile import profiled, steps, warm_profiler
from benchmarks.intervals import Interval

if TYPE_CHECKING:
    from verifier_service.engines.base import Chunk
    from verifier_service.engines.torch_engine import TorchEngine
    from verifier_service.messages import Sampling

_log = logging.getLogger(__name__)

MS = 1e-6
PROFILED_CALLS = 3
# Ids that are special in no vocabulary of interest.
FIRST_ID = 100


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


def samplings() -> dict[str, Sampling]:
    """The choices that are timed."""
    from verifier_service.messages import Sampling

    return {
        "greedy": Sampling(temperature=0.0, max_tokens=1 << 20),
        "random": Sampling(temperature=1.0, seed=5, max_tokens=1 << 20),
        "filtered": Sampling(temperature=1.0, seed=5, top_p=0.9, top_k=50, max_tokens=1 << 20),
    }


@dataclass(slots=True)
class Sequences:
    """Chunks of made-up sequences, each with cache blocks of its own."""

    engine: TorchEngine
    max_model_len: int

    @property
    def most(self) -> int:
        """How many sequences of the longest length the cache holds."""
        return self.engine.cache.num_blocks // self._each

    @property
    def _each(self) -> int:
        return -(-self.max_model_len // self.engine.cache.block_size)

    def blocks(self, row: int, length: int) -> list[int]:
        """Of sequence `row`, for `length` positions."""
        count = -(-length // self.engine.cache.block_size)
        return list(range(row * self._each, row * self._each + count))

    def verification(self, row: int, tokens: int, context: int, sampling: Sampling) -> Chunk:
        ids = made_up(row, tokens, self.engine.model.vocab_size)
        return self.chunk(row, ids, context, tokens - 1, sampling)

    def chunk(
        self, row: int, ids: list[int], start: int, drafts: int | None, sampling: Sampling
    ) -> Chunk:
        """`drafts` None: a part of a prompt that chooses nothing."""
        from verifier_service.engines.base import Chunk

        blocks = self.blocks(row, start + len(ids))
        samples = drafts is not None
        return Chunk(ids, start, blocks, drafts or 0, samples, sampling, sequence_ids=ids)

    def decode(
        self, sequences: list[list[int]], sampling: Sampling, steps: int, ahead: bool
    ) -> None:
        """Append `steps` tokens to each sequence, whose keys but the last one's are there.

        `ahead` lets the engine begin each step before it is asked to.
        """
        from verifier_service.engines.base import Chunk

        for _ in range(steps):
            chunks = [
                Chunk(
                    ids[-1:],
                    len(ids) - 1,
                    self.blocks(row, len(ids) + 1),
                    0,
                    True,
                    sampling,
                    sequence_ids=ids,
                )
                for row, ids in enumerate(sequences)
            ]
            verdicts = self.engine.run(chunks, goes_on=(lambda _: True) if ahead else None)
            for ids, verdict in zip(sequences, verdicts, strict=True):
                assert verdict is not None
                ids.extend(verdict.tokens)


def made_up(row: int, tokens: int, vocab_size: int) -> list[int]:
    """Ids that differ by row."""
    return [FIRST_ID + (31 * row + 7 * at) % (vocab_size - FIRST_ID) for at in range(tokens)]


def spent(engine: TorchEngine, chunks: list[Chunk], calls: int) -> dict[str, Any]:
    """Milliseconds of a call: the host's clock, and the device's work by launch."""
    for _ in range(3):
        engine.run(chunks)
    times = []
    for _ in range(calls):
        began = time.perf_counter_ns()
        engine.run(chunks)
        times.append((time.perf_counter_ns() - began) * MS)
    times.sort()
    return {
        "run_ms": round(statistics.median(times), 3),
        "middle_half_ms": [round(times[len(times) // 4], 3), round(times[-1 - len(times) // 4], 3)],
    }


def on_device(engine: TorchEngine, chunks: list[Chunk], device: str) -> dict[str, Any]:
    """Milliseconds of a call's largest launch, the forward's, and of all others; empty on a CPU.

    `*_ms` is in which any kernel ran, `forward_span_ms` the time from its first to its last.
    """
    if device != "cuda":
        return {}
    calls = []
    with profiled(device) as profile:
        for _ in range(PROFILED_CALLS):
            began = time.time_ns()
            engine.run(chunks)
            calls.append(Interval(began, time.time_ns()))
    found: dict[str, list[float]] = {"forward_ms": [], "forward_span_ms": [], "others_ms": []}
    for launches in steps(profile.launches(), calls):
        if not launches:
            continue
        largest = max(launches, key=lambda launch: launch.busy)
        found["forward_ms"].append(largest.busy * MS)
        found["forward_span_ms"].append((largest.end - largest.start) * MS)
        others = sum(launch.busy for launch in launches if launch is not largest)
        found["others_ms"].append(others * MS)
    return {name: round(statistics.median(values), 3) for name, values in found.items() if values}


def decoding(bench: Bench, engine: TorchEngine, rows: Sequences) -> list[dict[str, Any]]:
    """One line a shape that the engine has room for, with the times of each choice."""
    warm_profiler(bench.device)
    fill(bench, engine, rows)
    found = []
    for sequences, tokens in bench.shapes:
        if sequences > rows.most or tokens > bench.num_speculative_tokens + 1:
            continue
        line: dict[str, Any] = {"sequences": sequences, "tokens": tokens}
        for name, sampling in samplings().items():
            chunks = [
                rows.verification(row, tokens, bench.context, sampling) for row in range(sequences)
            ]
            line[name] = spent(engine, chunks, bench.calls)
            line[name] |= on_device(engine, chunks, bench.device)
        if tokens == 1:
            line |= steadily(bench, engine, rows, sequences)
        found.append(line)
    return found


def fill(bench: Bench, engine: TorchEngine, rows: Sequences) -> None:
    """Give every sequence that a shape uses a context: zeros may be read faster than values."""
    greedy = samplings()["greedy"]
    for row in range(min(rows.most, max(sequences for sequences, _ in bench.shapes))):
        ids = made_up(row, bench.context, engine.model.vocab_size)
        engine.run([rows.chunk(row, ids, 0, None, greedy)])


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
    ):
        try:
            report[name] = part()
        except Exception as error:
            _log.exception("%s failed", name)
            report["errors"][name] = first_line(error)
    report["answers"] = checks.answers
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
