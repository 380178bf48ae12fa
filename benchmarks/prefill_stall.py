"""How long waiting prompts hold up running streams: gaps between a stream's messages, as JSON.

    python -m benchmarks.prefill_stall --model smollm2-135m > prefill_stall.json

For each `--stall-ms` a server of its own. Streams run quietly first, then prompts of
`--total-tokens` in all are sent at once, and the streams go on until the last is answered or
`--seconds` are over. A message carries a round's tokens, so a gap is what a reader waits.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import describe_machine, end_on_sigterm, public_command, versions
from benchmarks.outrider_system import REQUEST_SECONDS, OutriderServer

# Ids that every vocabulary of interest has, its special ones left out.
FIRST_ID, LAST_ID = 1000, 30_000
STREAM_PROMPT_TOKENS = 32


@dataclass
class Gaps:
    """Seconds between messages, by phase: `quiet` or `waiting` (prompts wait)."""

    quiet: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)


class Phase:
    """What all streams share: who has begun, whether prompts wait, and whether it is over."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.prompts_wait = threading.Event()
        self.over = threading.Event()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no gaps were measured")
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def summary(gaps: Sequence[float]) -> dict[str, float]:
    """Milliseconds; `messages` counts the gaps."""
    return {
        "messages": len(gaps),
        "p50_ms": round(percentile(gaps, 0.50) * 1e3, 2),
        "p90_ms": round(percentile(gaps, 0.90) * 1e3, 2),
        "p99_ms": round(percentile(gaps, 0.99) * 1e3, 2),
        "max_ms": round(max(gaps) * 1e3, 2),
    }


def prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Ids at random: no two prompts begin alike, nothing is found in the cache."""
    rng = random.Random(seed)
    return [[rng.randint(FIRST_ID, LAST_ID) for _ in range(tokens)] for _ in range(count)]


def stream(
    client: httpx.Client,
    prompt: list[int],
    phase: Phase,
    max_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Gaps:
    """One client that reads, and asks again when its answer ends, until the phase is over."""
    gaps = Gaps()
    seed = 0
    begun = False
    while not phase.over.is_set():
        seed += 1
        body = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "seed": seed,
            "ignore_eos": True,
            "stream": True,
        }
        with client.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            last = 0.0
            waited = False
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                now = clock()
                if not begun:
                    begun = True
                    phase.begun.release()
                waits = phase.prompts_wait.is_set()
                if last:
                    # A gap that began while prompts waited is theirs.
                    (gaps.waiting if waited else gaps.quiet).append(now - last)
                last, waited = now, waits
                if phase.over.is_set():
                    break
    return gaps


def ask(client: httpx.Client, prompt: list[int], seconds: float) -> float | None:
    """Seconds to one prompt's answer of one token; None after `seconds` without one."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    started = time.perf_counter()
    try:
        response = client.post("/v1/completions", json=body, timeout=seconds)
    except httpx.TimeoutException:
        return None
    response.raise_for_status()
    return time.perf_counter() - started


def measure(server: OutriderServer, options: argparse.Namespace) -> dict[str, Any]:
    """One server's figures."""
    count = options.total_tokens // options.prompt_tokens
    waiting = prompts(count, options.prompt_tokens, seed=1)
    own = prompts(options.streams, STREAM_PROMPT_TOKENS, seed=2)
    phase = Phase()
    limits = httpx.Limits(max_connections=count + options.streams)
    with (
        httpx.Client(base_url=server.url, timeout=REQUEST_SECONDS, limits=limits) as client,
        ThreadPoolExecutor(count + options.streams) as pool,
    ):
        streams = [pool.submit(stream, client, p, phase, options.max_tokens) for p in own]
        for _ in streams:
            if not phase.begun.acquire(timeout=REQUEST_SECONDS):
                raise RuntimeError("a stream had no first message")
        time.sleep(options.quiet_seconds)
        phase.prompts_wait.set()
        started = time.perf_counter()
        asked = [pool.submit(ask, client, p, options.seconds) for p in waiting]
        wait(asked)
        elapsed = time.perf_counter() - started
        phase.over.set()
        gaps = [future.result() for future in streams]
        answers = [future.result() for future in asked]
        answered = sorted(seconds for seconds in answers if seconds is not None)
        metrics = client.get("/metrics").text
    return {
        "quiet": summary([gap for each in gaps for gap in each.quiet]),
        "prompts_waiting": summary([gap for each in gaps for gap in each.waiting]),
        "prompts": count,
        "answered": len(answered),
        "seconds": round(elapsed, 2),
        "answer_seconds": {
            "first": round(answered[0], 2),
            "last": round(answered[-1], 2),
        }
        if answered
        else None,
        "preemptions": counter(metrics, "vllm:num_preemptions_total"),
    }


def counter(metrics: str, name: str) -> int:
    """The sum of a counter's samples in Prometheus text."""
    values = [line.rsplit(" ", 1)[1] for line in metrics.splitlines() if line.startswith(name)]
    return int(sum(float(value) for value in values))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--stall-ms", type=float, nargs="+", default=[100.0, 60_000.0], help="one server for each"
    )
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--total-tokens", type=int, default=100_000, help="of waiting prompts")
    parser.add_argument("--prompt-tokens", type=int, default=2_000, help="of one of them")
    parser.add_argument("--max-tokens", type=int, default=400, help="of a stream's answer")
    parser.add_argument("--quiet-seconds", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=600.0, help="at most, prompts waiting")
    parser.add_argument("--extra", nargs="*", default=[], help="more options of `outrider serve`")
    options = parser.parse_args(arguments)
    if options.total_tokens < options.prompt_tokens:
        parser.error("--total-tokens must be at least --prompt-tokens")
    return options


def main() -> None:
    end_on_sigterm()
    options = parse(sys.argv[1:])
    results = []
    for stall_ms in options.stall_ms:
        with tempfile.TemporaryDirectory() as folder:
            extra = [f"--prefill-stall-ms={stall_ms:g}", *options.extra]
            log = Path(folder) / "server.log"
            with OutriderServer(
                options.model, log, max_num_seqs=options.streams + 4, extra=extra
            ) as server:
                results.append({"prefill_stall_ms": stall_ms, **measure(server, options)})
    report = {
        "machine": describe_machine(),
        "versions": versions(["outrider", "torch", "transformers"]),
        "command": public_command(
            "benchmarks.prefill_stall", sys.argv[1:], {"--model": Path(options.model).name}
        ),
        "results": results,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
