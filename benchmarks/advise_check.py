"""Whether `outrider advise` foretells what a verifier accepts: measured beside predicted.

    python -m benchmarks.advise_check --model smollm2-135m --data DATA --out OUT

A verifier with adaptive verification off and its proposers, each in a process of its own, answer
prompts of several sets one after the other. What they counted is held against the advisor's replay
of the same prompts and outputs, once as token ids and once as text. No figure is a time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console
from speculation.v1 import verifier_pb2, verifier_pb2_grpc

from benchmarks.advise_report import LIMIT, Comparison, page, within
from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.outrider_system import ServerFailed
from benchmarks.prompts import SET_NAMES, RawPrompt, encode, raw_prompts
from outrider.acceptance import speculative_decoding_metrics
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

OUTRIDER = str(Path(sys.executable).with_name("outrider"))
START_S = 600.0
ANSWER_S = 1200.0
# A draft that comes late is none: on a busy machine that would not be the method's doing.
DEADLINE_MS = 60_000
METHODS: dict[str, list[str]] = {
    "ngram": ["--prompt-lookup-min=2", "--prompt-lookup-max=5"],
    "suffix": [],
}


def choose_prompts(
    sets: Sequence[str], data: Path, tokenizer: Any, each: int, most: int
) -> list[tuple[RawPrompt, list[int]]]:
    """The first `each` prompts of every set that have at most `most` tokens, and their ids."""
    chosen = []
    for name in sets:
        fitting = ((raw, encode(raw, tokenizer)) for raw in raw_prompts(name, data))
        found = list(itertools.islice((p for p in fitting if len(p[1]) <= most), each))
        if len(found) < each:
            raise ValueError(f"set {name} has {len(found)} prompts of at most {most} tokens")
        chosen += found
    return chosen


@contextlib.contextmanager
def serving(options: argparse.Namespace, folder: Path) -> Iterator[Any]:
    """A verifier's stub; verifier and proposers end with the context. Raises ServerFailed."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            processes.append(
                subprocess.Popen([OUTRIDER, *arguments], stdout=log, stderr=subprocess.STDOUT)
            )

    address = f"unix:{folder}/verifier"
    try:
        for method, own in METHODS.items():
            start(
                method,
                "proposer",
                f"--listen=unix:{folder}/{method}",
                f"--method={method}",
                *own,
            )
        start(
            *("verifier", "verifier", options.model, f"--listen={address}"),
            *(f"--dtype={options.dtype}", f"--threads={options.threads}"),
            *(f"--proposer=unix:{folder}/{method}" for method in METHODS),
            *("--no-enable-adaptive-verification", f"--num-speculative-tokens={options.k}"),
            f"--draft-deadline-ms={DEADLINE_MS}",
        )
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            _wait_until_connected(stub, processes, folder)
            yield stub
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(60)


def _wait_until_connected(
    stub: Any, processes: Sequence[subprocess.Popen[bytes]], folder: Path
) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            break
        with contextlib.suppress(grpc.RpcError):
            info = stub.GetInfo(verifier_pb2.GetInfoRequest(), timeout=10)
            if all(proposer.state == "connected" for proposer in info.proposers):
                return
        time.sleep(0.2)
    tail = "\n".join((folder / "verifier.log").read_text(errors="replace").splitlines()[-20:])
    raise ServerFailed(f"the verifier or a proposer did not start: {tail}")


def answer(
    stub: Any, ids: Sequence[int], method: str, options: argparse.Namespace, temperature: float
) -> tuple[dict[str, Any], verifier_pb2.Finished]:
    """One answer, as fields of a traffic line, and what the verifier counted."""
    request = verifier_pb2.GenerateRequest(
        token_ids=verifier_pb2.TokenIds(ids=ids),
        sampling=verifier_pb2.SamplingParams(
            temperature=temperature, top_p=1.0, top_k=0, seed=1, max_tokens=options.tokens
        ),
        speculation=verifier_pb2.SpeculationParams(proposer=method),
        cache_salt=f"{method} {temperature:g}",
        detokenize=True,
    )
    output, text, finished = [], "", None
    for message in stub.Generate(request, timeout=ANSWER_S):
        output.extend(message.delta.token_ids)
        text += message.delta.text
        if message.HasField("finished"):
            finished = message.finished
    if finished is None:
        raise ServerFailed("an answer ended without its counts")
    reason = "stop" if finished.WhichOneof("stop") else "length"
    line = {
        "prompt_token_ids": list(ids),
        "output_token_ids": output,
        "output": text,
        "finish_reason": reason,
        "max_tokens": options.tokens,
        "cache_salt": request.cache_salt,
        "cached_prompt_tokens": finished.cached_prompt_tokens,
    }
    return line, finished


def predict(traffic: Path, method: str, k: int, model: str) -> dict[str, Any]:
    """What the command says that `method` accepts of a traffic file."""
    command = [
        *(OUTRIDER, "advise", str(traffic), "--json", f"--num-speculative-tokens={k}"),
        *("--window=2-5", f"--model={model}"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise ServerFailed(f"outrider advise failed: {ran.stderr.strip()}")
    methods = json.loads(ran.stdout)["methods"]
    found = next(entry for entry in methods if entry["method"] == method)
    result: dict[str, Any] = found["results"][0]["speculative_decoding"]
    return result


def compare(
    stub: Any,
    prompts: Sequence[tuple[RawPrompt, list[int]]],
    method: str,
    temperature: float,
    options: argparse.Namespace,
    folder: Path,
) -> Comparison:
    """Answer all prompts with one method, then replay what was answered."""
    lines, sums = [], None
    for raw, ids in prompts:
        line, finished = answer(stub, ids, method, options, temperature)
        lines.append((raw, line))
        stats = speculative_decoding_metrics(finished.acceptance)
        sums = stats if sums is None else _add(sums, stats)
    assert sums is not None
    by_ids, by_text = folder / "ids.jsonl", folder / "text.jsonl"
    by_ids.write_text("".join(json.dumps(_without(line, "output")) + "\n" for _, line in lines))
    by_text.write_text("".join(json.dumps(_as_text(raw, line)) + "\n" for raw, line in lines))
    return Comparison(
        method=method,
        temperature=temperature,
        num_speculative_tokens=options.k,
        requests=len(lines),
        output_tokens=sum(len(line["output_token_ids"]) for _, line in lines),
        measured=_counts(sums),
        predicted=_counts(predict(by_ids, method, options.k, options.model)),
        predicted_from_text=_counts(predict(by_text, method, options.k, options.model)),
    )


def _add(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    summed = {key: a[key] + b[key] for key in a if key.startswith("num_")}
    pairs = zip(a["acceptance_histogram"], b["acceptance_histogram"], strict=True)
    return {**summed, "acceptance_histogram": [x + y for x, y in pairs]}


def _counts(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "steps": found["num_spec_steps"],
        "drafted": found["num_draft_tokens"],
        "accepted": found["num_accepted_draft_tokens"],
        "histogram": found["acceptance_histogram"],
    }


def _without(line: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in fields}


def _as_text(raw: RawPrompt, line: dict[str, Any]) -> dict[str, Any]:
    prompt = (
        {"messages": [{"role": "user", "content": raw.text}]} if raw.chat else {"prompt": raw.text}
    )
    return {**prompt, **_without(line, "prompt_token_ids", "output_token_ids")}


def _by_set(sets: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    each = len(names) // len(sets)
    return {name: list(names[i * each : (i + 1) * each]) for i, name in enumerate(sets)}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m", help="a folder or a known name")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prompt sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for advise.md and .json")
    parser.add_argument("--sets", default=",".join(SET_NAMES))
    parser.add_argument("--prompts", type=int, default=2, help="of each set")
    parser.add_argument("--max-prompt-tokens", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("-k", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1, help="of the verifier")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, console: Console) -> bool:
    """Measure, predict, write the report; whether all predictions are within the limit."""
    from verifier_service.text import Text

    model = resolve_model(options.model, ModelStore(cache_directory()), refuse_to_pull, "--model")
    tokenizer = Text.load(model.folder).tokenizer
    prompts = choose_prompts(
        options.sets.split(","),
        options.data,
        tokenizer,
        options.prompts,
        options.max_prompt_tokens,
    )
    comparisons = []
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp") as name:
        folder = Path(name)
        with serving(options, folder) as stub:
            for temperature in options.temperatures:
                for method in METHODS:
                    comparisons.append(compare(stub, prompts, method, temperature, options, folder))
                    console.print(comparisons[-1].line())
    hidden = {"--data": "DATA", "--out": "OUT", "--model": model.name}
    report = {
        "machine": describe_machine(),
        "versions": versions(["outrider", "torch", "transformers"]),
        "command": public_command("benchmarks.advise_check", sys.argv[1:], hidden),
        "model": model.name,
        "prompts": _by_set(options.sets.split(","), [raw.name for raw, _ in prompts]),
        "limit": LIMIT,
        "comparisons": [comparison.as_json() for comparison in comparisons],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "advise.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "advise.md").write_text(page(report, comparisons))
    return all(within(comparison) for comparison in comparisons)


def main() -> None:
    options = parse(sys.argv[1:])
    console = Console(stderr=True)
    sys.exit(end_with(lambda: run(options, console), console))


if __name__ == "__main__":
    main()
