"""What a session on a card measures: the parts, their commands and how long each may take.

Knows the other benchmarks' command lines; runs nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_checkpoints import BIG, SMALL

OURS, PEER = "ours", "vllm"
# vLLM fills a step with prompts, whoever waits for the next token. So do we beside it.
UNPACED = ["--serve-option=--prefill-stall-ms=1000"]
EVERY_DRAFT = [
    {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
        "enable_adaptive_verification": False,
    },
    {"method": "suffix", "num_speculative_tokens": 4, "enable_adaptive_verification": False},
]


@dataclass(frozen=True, slots=True)
class Part:
    """One command: `command` gives it for the number of the attempt.

    `joins` are the prefixes of reports that one page is made of behind it; without a `needed` part
    the others are not begun.
    """

    name: str
    seconds: float
    command: Callable[[int], list[str]]
    joins: tuple[str, ...] = ()
    needed: bool = False


def parts(options: argparse.Namespace) -> list[Part]:
    """All of a session, the most telling first; vLLM's only where its interpreter is known."""
    quick, out = options.quick, options.out
    on_cpu = options.device == "cpu"
    model = target(options)
    common = ["--device", options.device, "--out", str(out)]
    loads = [*common, "--model", str(model), "--data", str(options.data), "--logs", str(out)]
    engine = [*common, "--model", str(model), "--logs", str(out)]
    engine += ["--code", str(options.code or out / "code"), "--name", "gpu_engine"]
    if quick:
        engine += ["--shapes", "1x1,2x3", "--prefills", "16", "--calls", "2", "--new-tokens", "6"]
        engine += ["--context", "16", "--max-model-len", "512", "--num-speculative-tokens", "3"]
    small = ["--quick"] if quick else []
    dtype = ["--dtype", "float32"] if on_cpu else []

    def module(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", f"benchmarks.{name}", *arguments]

    def measured(prefix: str, attempt: int, *arguments: str) -> list[str]:
        table = out / "gpu_engine.json"
        priced = ["--engine-table", str(table)] if table.exists() else []
        given = [*loads, *dtype, "--name", f"{prefix}-{attempt}", *priced, *small]
        return module("gpu", *given, *arguments)

    loaded = ["--repetitions", str(options.repetitions)]
    repeated = [] if quick else [*loaded, "--minutes", "6.2"]
    found = [
        Part("engine", 200, lambda _: module("gpu_engine", *engine, *dtype)),
        Part(
            "ours",
            450,
            lambda n: measured(OURS, n, "--rows", "outrider", *UNPACED, *repeated),
            joins=(OURS, PEER),
        ),
    ]
    if options.peer_env is not None or options.peer_python is not None:
        peer = ["--rows", "vllm", *([] if quick else [*loaded, "--minutes", "2"])]
        peer += [] if options.peer_env is None else ["--peer-env", str(options.peer_env)]
        peer += [] if options.peer_python is None else ["--peer-python", options.peer_python]
        found.append(Part("vllm", 420, lambda n: measured(PEER, n, *peer), joins=(OURS, PEER)))
    every = ["--rows", "outrider plain,outrider ngram,outrider both", "--temperatures", "0"]
    every += UNPACED
    every += ["--speculative-config", json.dumps(EVERY_DRAFT)]
    every += [] if quick else ["--clients", "1,8,32", "--repetitions", "1", "--minutes", "1.2"]
    trace = [*loads, *dtype, "--name", "gpu_trace"]
    if quick:
        trace += ["--clients", "1,2", "--seconds", "0.3", "--settle-tokens", "2", "--enforce-eager"]
        trace += ["--new-tokens", "32", "--max-model-len", "512", "--max-num-batched-tokens", "512"]
    if options.chrome is not None:
        trace += ["--chrome", str(options.chrome)]
    # Answers so short that prompts come all the time, one by one where drafts end them apart.
    churn = ["--name", "gpu_trace_churn"]
    if not quick:
        churn += ["--clients", "32,128", "--temperatures", "0", "--new-tokens", "128"]
    variants = ["--configs", "base" if quick else "base,batch-invariant,fp8,int8"]
    uncaptured = ["--configs", "eager" if quick else "base,uncaptured-prefill,eager"]
    llm = [*common, *dtype, "--model", str(model), "--data", str(options.data)]
    llm += ["--prompts", "2", "--new-tokens", "8", "--max-model-len", "512"] if quick else []
    found += [
        Part("variants", 330, lambda _: module("gpu_engine", *engine, *dtype, *variants)),
        Part("trace", 170, lambda _: module("gpu_trace", *trace)),
        Part("churn", 90, lambda _: module("gpu_trace", *trace, *churn)),
    ]
    if options.padding is not None:
        drafts = ["--rows", "outrider plain,outrider draft model", *UNPACED]
        drafts += ["--speculative-config", json.dumps([draft_model(options)])]
        drafts += [] if quick else ["--clients", "1,8,32", "--repetitions", "1", "--minutes", "1.5"]
        found.append(
            Part("draft-model", 150, lambda n: measured("gpu_draft_model", n, *drafts)),
        )
    found += [
        Part("uncaptured", 170, lambda _: module("gpu_engine", *engine, *dtype, *uncaptured)),
        Part("every-draft", 120, lambda n: measured("gpu_every_draft", n, *every)),
        Part("llm", 90, lambda _: module("gpu_llm_smoke", *llm)),
    ]
    return [*_checkpoints(options), *found]


def target(options: argparse.Namespace) -> Path:
    """The folder that is measured."""
    if options.gguf is None:
        return Path(options.model)
    return Path(options.models) / (SMALL if options.padding is None else BIG)


def draft_model(options: argparse.Namespace) -> dict[str, object]:
    """The small model, of which the padded target is the same function: a draft model at its best.

    K as in the published figures of others.
    """
    small = Path(options.models) / SMALL
    return {"method": "draft_model", "model": str(small), "num_speculative_tokens": 4}


def _checkpoints(options: argparse.Namespace) -> list[Part]:
    if options.gguf is None:
        return []
    command = [sys.executable, "-m", "benchmarks.gpu_checkpoints", "--gguf", str(options.gguf)]
    command += ["--models", str(options.models), "--device", options.device]
    command += [] if options.padding is None else ["--padding", str(options.padding)]
    return [Part("model", 180, lambda _: command, needed=True)]
