"""Does the engine run on a GPU, and how fast before any tuning: plain and n-gram, in one process.

Core and n-gram proposer in one process, eager, no CUDA graphs: a smoke run, not a benchmark of the
services. Plain and n-gram runs alternate on one loaded engine; every figure is the median of
`--repeats` runs.

usage: python -m benchmarks.gpu_smoke MODEL_DIR PROMPTS.jsonl OUT_DIR [--device cuda]
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer

from benchmarks.inprocess_source import InprocessSource
from outrider.acceptance import Acceptance
from proposer_service.proposers.ngram import NgramProposer
from verifier_service.build import build_core
from verifier_service.core import EngineCore
from verifier_service.messages import Output, Request, Sampling
from verifier_service.settings import VerifierSettings


@dataclass(frozen=True, slots=True)
class Reading:
    """Median tokens/s of all clients together; `same` counts answers equal to plain decoding's."""

    temperature: float
    clients: int
    method: str
    tokens_per_s: float
    lowest: float
    highest: float
    acceptance_length: float
    same: int
    answers: int


def generate(
    core: EngineCore, prompts: list[list[int]], temperature: float, tokens: int, k: int
) -> tuple[list[list[int]], float, Acceptance]:
    """All prompts at once; their answers, the seconds from first to last, the acceptance."""
    answers: list[list[int]] = [[] for _ in prompts]
    acceptance = Acceptance(max(k, 1))
    left = threading.Semaphore(0)
    errors: list[str] = []

    def sink(i: int, output: Output) -> None:
        answers[i].extend(output.token_ids)
        if output.round:
            acceptance.add(output.round)
        if output.error:
            errors.append(output.error)
        if output.error or output.finish_reason:
            left.release()

    start = time.perf_counter()
    for i, ids in enumerate(prompts):
        sampling = Sampling(temperature=temperature, seed=i, max_tokens=tokens)
        request = Request(f"{start}-{i}", ids, sampling, num_speculative_tokens=k)
        core.submit(request, lambda output, i=i: sink(i, output))
    for _ in prompts:
        left.acquire()
    if errors:
        raise RuntimeError(errors[0])
    return answers, time.perf_counter() - start, acceptance


def measure(
    core: EngineCore, prompts: list[list[int]], options: argparse.Namespace
) -> list[Reading]:
    readings = []
    for clients in options.clients:
        for temperature in options.temperatures:
            batches = [
                (prompts * clients)[i : i + clients]
                for i in range(0, max(options.prompts, clients), clients)
            ]
            speeds: dict[int, list[float]] = {0: [], options.k: []}
            sums = Acceptance(options.k)
            same = answers = 0
            for _ in range(options.repeats):
                seen: dict[int, list[list[int]]] = {}
                for k in speeds:
                    seconds = 0.0
                    seen[k] = []
                    for batch in batches:
                        out, spent, acceptance = generate(
                            core, batch, temperature, options.tokens, k
                        )
                        seen[k] += out
                        seconds += spent
                        if k:
                            sums.merge(acceptance)
                    speeds[k].append(sum(map(len, seen[k])) / seconds)
                same += sum(a == b for a, b in zip(seen[0], seen[options.k], strict=True))
                answers += len(seen[0])
            for k, values in speeds.items():
                readings.append(
                    Reading(
                        temperature,
                        clients,
                        f"ngram K={k}" if k else "plain",
                        round(statistics.median(values), 1),
                        round(min(values), 1),
                        round(max(values), 1),
                        round(sums.mean_acceptance_length if k else 1.0, 2),
                        same if k else answers,
                        answers,
                    )
                )
                print(asdict(readings[-1]), flush=True)
    return readings


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts_file")
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--label", default="")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = [json.loads(line) for line in Path(options.prompts_file).read_text().splitlines()]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["turns"][0]}], add_generation_prompt=True
        )["input_ids"]
        for row in rows
    ]
    prompts = [ids for ids in prompts if len(ids) < 1800][: max(options.prompts, *options.clients)]
    settings = VerifierSettings(
        options.model,
        "unused",
        "target",
        device=options.device,
        dtype=options.dtype,
        compile=False,
        num_speculative_tokens=options.k,
        max_num_batched_tokens=2048,
        kv_cache_bytes=8 << 30,
        adaptive=False,
    )
    core = build_core(settings, InprocessSource({"ngram": NgramProposer(2, 5)}))
    generate(core, prompts[:1], 1.0, 16, options.k)
    readings = measure(core, prompts, options)
    step_cost = core.stats().step_cost_ms
    core.shutdown()
    report = {
        "what": "smoke run: in-process core, eager, no CUDA graphs, n-gram window 2 to 5",
        "label": options.label,
        "command": shlex.join(
            [
                Path(sys.executable).name,
                "-m",
                "benchmarks.gpu_smoke",
                "MODEL",
                "PROMPTS",
                "OUT",
                *sys.argv[4:],
            ]
        ),
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name()
        if options.device == "cuda"
        else platform.processor(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "step_cost_ms": step_cost,
        "readings": [asdict(reading) for reading in readings],
    }
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"gpu_smoke{options.label and '_' + options.label}.json").write_text(
        json.dumps(report, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
