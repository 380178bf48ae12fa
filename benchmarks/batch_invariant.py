"""What `--batch-invariant` costs, and which bits differ without it, as JSON.

    python -m benchmarks.batch_invariant --model FOLDER [--device cuda] > batch_invariant.json

Two engines on the same weights, one with the option, take turns at the same step, so a machine
that slows down slows both. On a CPU what counts is processor time, of one thread by default, so
that a busy machine's waits do not; on a GPU it is the time until the step's tokens are there.
Beside the times: how many rows of logits of a sequence are the same
bits alone and token by token as with drafts, in chunks of the prompt, and beside seven others.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, end_on_sigterm, public_command, versions
from verifier_service.engines.base import Chunk
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.messages import Sampling, TokenLogprob
from verifier_service.settings import VerifierSettings

CONTEXT = 256
OTHERS = 7
LENGTH = CONTEXT + 16
# Of each engine on a GPU, where two of them share the memory.
CACHE_BYTES = 2 << 30
# Ids that every vocabulary of interest has, its special ones left out.
FIRST_ID, LAST_ID = 1000, 30_000
GREEDY = Sampling(temperature=0.0)
# Numbers of the target's own come out as log-probabilities: the top one and four more of each row.
ASKING = Sampling(temperature=0.0, logprobs=4)


@dataclass(frozen=True, slots=True)
class Load:
    """A step to be timed: `sequences` of `queries` tokens each, at `start`."""

    name: str
    sequences: int
    queries: int
    start: int


LOADS = (
    Load("1 sequence, plain", 1, 1, CONTEXT),
    Load("1 sequence, 4 drafts", 1, 5, CONTEXT),
    Load("1 sequence, 8 drafts", 1, 9, CONTEXT),
    Load("8 sequences, plain", 8, 1, CONTEXT),
    Load("8 sequences, 4 drafts", 8, 5, CONTEXT),
    Load("prefill of 256", 1, 256, 0),
)


def token_ids(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(FIRST_ID, LAST_ID) for _ in range(LENGTH)]


def blocks(engine: TorchEngine, row: int) -> list[int]:
    """The cache blocks of one sequence, apart from those of all others."""
    count = -(-LENGTH // engine.cache.block_size)
    return list(range(row * count, (row + 1) * count))


def chunk(
    engine: TorchEngine, row: int, begin: int, end: int, rows: int, sampling: Sampling = GREEDY
) -> Chunk:
    """Tokens begin … end - 1 of sequence `row`, the last `rows` of which choose."""
    ids = token_ids(row)[begin:end]
    return Chunk(ids, begin, blocks(engine, row), max(rows - 1, 0), rows > 0, sampling)


def timed(engine: TorchEngine, load: Load) -> float:
    """Seconds of one step: of all processor threads, or on a GPU from begin to end."""
    clock = time.process_time if engine.model.device == "cpu" else time.perf_counter
    end = load.start + load.queries
    rows = 1 if load.start == 0 else load.queries
    chunks = [chunk(engine, row, load.start, end, rows) for row in range(load.sequences)]
    started = clock()
    engine.run(chunks)
    return clock() - started


def fill(engine: TorchEngine) -> None:
    for row in range(OTHERS + 1):
        engine.run([chunk(engine, row, 0, CONTEXT, 0)])


def costs(plain: TorchEngine, invariant: TorchEngine, repeats: int) -> list[dict[str, Any]]:
    """Median milliseconds of both, and the median of the ratios of neighbouring steps."""
    results = []
    for load in LOADS:
        pairs = []
        for repeat in range(repeats + 1):
            first, second = (plain, invariant) if repeat % 2 else (invariant, plain)
            times = {id(first): timed(first, load), id(second): timed(second, load)}
            pairs.append((times[id(plain)], times[id(invariant)]))
        pairs = pairs[1:]
        ratios = sorted(before / after for before, after in pairs)
        results.append(
            {
                "load": load.name,
                "plain_ms": round(statistics.median(a for a, _ in pairs) * 1e3, 2),
                "invariant_ms": round(statistics.median(b for _, b in pairs) * 1e3, 2),
                "relative_tokens_per_s": round(statistics.median(ratios), 3),
                "middle_half": [
                    round(ratios[len(ratios) // 4], 3),
                    round(ratios[-1 - len(ratios) // 4], 3),
                ],
            }
        )
    return results


Rows = list[TokenLogprob]


def asked(engine: TorchEngine, others: Sequence[Chunk], begin: int, end: int) -> Rows:
    """What the target says behind token `begin` of sequence 0, with those up to `end` as drafts."""
    verdict = engine.run([chunk(engine, 0, begin, end, end - begin, ASKING), *others])[0]
    assert verdict is not None
    return [verdict.logprobs[0]]


def compositions(engine: TorchEngine) -> dict[str, Callable[[int], Rows]]:
    """Ways to reach the target's row at a token; the cache holds everything before it."""
    others = [chunk(engine, row, CONTEXT, CONTEXT + row % 4 + 1, 1) for row in range(1, 8)]

    def in_chunks(at: int) -> Rows:
        for begin in range(0, at, 100):
            engine.run([chunk(engine, 0, begin, min(begin + 100, at), 0)])
        return asked(engine, [], at, at + 1)

    return {
        "4 drafts behind it": lambda at: asked(engine, [], at, at + 5),
        "8 drafts behind it": lambda at: asked(engine, [], at, at + 9),
        "beside 7 sequences": lambda at: asked(engine, others, at, at + 1),
        "prompt in chunks of 100": in_chunks,
    }


def same_rows(engine: TorchEngine) -> dict[str, str]:
    """By composition: of how many rows all told log-probabilities are the same bits."""
    places = range(CONTEXT - 4, CONTEXT)
    counts = {}
    for name, compose in compositions(engine).items():
        same = 0
        for at in places:
            engine.run([chunk(engine, 0, 0, at, 0)])
            alone = asked(engine, [], at, at + 1)
            same += compose(at) == alone
        counts[name] = f"{same} of {len(places)}"
    return counts


def measure(folder: Path, device: str, dtype: str, repeats: int, threads: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model": str(folder),
        "listen": "unix:unused",
        "served_model_name": "model",
        "device": device,
        "dtype": dtype,
        "max_model_len": 512,
        "max_num_seqs": OTHERS + 1,
        "threads": threads,
        "num_speculative_tokens": max(load.queries for load in LOADS if load.start) - 1,
        "kv_cache_bytes": None if device == "cpu" else CACHE_BYTES,
    }
    engines = [
        TorchEngine(VerifierSettings(**settings, batch_invariant=invariant))
        for invariant in (False, True)
    ]
    for engine in engines:
        fill(engine)
    result = {
        "dtype": dtype,
        "cost": costs(engines[0], engines[1], repeats),
        "same_rows_without": same_rows(engines[0]),
        "same_rows_with": same_rows(engines[1]),
    }
    for engine in engines:
        engine.close()
    return result


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def main() -> None:
    end_on_sigterm()
    options = parse(sys.argv[1:])
    report = {
        "machine": describe_machine(),
        "versions": versions(["outrider", "torch", "transformers"]),
        "command": public_command(
            "benchmarks.batch_invariant",
            sys.argv[1:],
            {"--model": options.model.name},
        ),
        "results": [
            measure(options.model, options.device, dtype, options.repeats, options.threads)
            for dtype in options.dtype
        ],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
