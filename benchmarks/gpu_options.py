"""The GPU benchmark's command line, and what its report says of the settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.gpu_bars import VLLM_PLAIN
from benchmarks.gpu_prompts import ORDERS

# What a report shows instead of the reader's own paths.
PLACEHOLDERS = {
    "--data": "DATA",
    "--engine-table": "ENGINE_JSON",
    "--logs": "LOGS",
    "--model": "MODEL",
    "--out": "OUT",
    "--peer-env": "PEER_ENV",
    "--peer-python": "PEER_PYTHON",
    "--render": "JSON",
}
OURS = "outrider"
CARD_BATCHED_TOKENS = 8192

_Number = TypeVar("_Number", int, float)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Tokens a second on one card: Outrider over HTTP, then vLLM offline.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--data", type=Path, default=Path("data"), help="Spec-Bench's file or its folder")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--rows", type=names, default=[OURS, VLLM_PLAIN], help="prefixes of row names")
    add("--clients", type=numbers(int), default=[1, 8, 32, 128], help="in order of their worth")
    add("--temperatures", type=numbers(float), default=[0.0, 1.0], help="in that order, too")
    add("--prompts", type=int, default=6, help="at one client")
    add("--prompts-per-client", type=int, default=3, help="at several clients")
    add("--one-prompt-from", type=int, default=256, help="this many clients send one prompt each")
    add("--order", default="mixed", choices=ORDERS, help="all tasks in turn, or as in the file")
    add("--max-prompt-tokens", type=int, default=1800, help="longer prompts are passed over")
    add("--max-model-len", type=int, default=4096)
    add("--new-tokens", type=int, default=128)
    add("--repetitions", type=int, default=3)
    add("--minutes", type=float, default=6, help="for each engine: no sweep begins later")
    add("--warmup-tokens", type=int, default=32, help="of each answer before anything is timed")
    add("--seed", type=int, default=1)
    add("--speculative-config", type=json.loads, default=[], help="for outrider serve, a list")
    add("--serve-option", action="append", default=[], help="further option of outrider serve")
    add("--max-num-batched-tokens", type=int, help=f"ours; on a card {CARD_BATCHED_TOKENS}")
    add("--peer-python", help="vLLM's interpreter; this one if only --peer-env is given")
    add("--peer-env", type=Path, help="shell file to source before vLLM's interpreter")
    add("--peer-memory", type=float, default=0.6, help="vLLM's gpu_memory_utilization")
    add("--engine-table", type=Path, help="gpu_engine.json: what a step costs, for the ceilings")
    add("--out", type=Path, default=Path("docs/benchmarks"))
    add("--name", default="gpu", help="of the files, without ending")
    add("--logs", type=Path, help="folder to keep the engines' logs in")
    add("--quick", action="store_true", help="a smoke run: 1 and 2 clients, 16 tokens")
    add("--render", type=Path, help="only make the page again, from this JSON")
    options = parser.parse_args(arguments)
    if options.quick:
        _make_quick(options)
    if options.max_num_batched_tokens is None and options.device == "cuda":
        options.max_num_batched_tokens = CARD_BATCHED_TOKENS
    return options


def describe_settings(options: argparse.Namespace) -> dict[str, str]:
    """What all engines share: the same for every part of a report, whatever its rows."""
    return {
        "prompts": f"Spec-Bench first turns, {ORDER_NAMES[options.order]}, at most "
        f"{options.max_prompt_tokens} tokens",
        "prompts at one client": str(options.prompts),
        "prompts of each of several clients": f"{options.prompts_per_client}, one from "
        f"{options.one_prompt_from} clients on",
        "new tokens": f"{options.new_tokens}, end of sequence ignored",
        "seed": str(options.seed),
        "dtype": options.dtype,
        "longest sequence": str(options.max_model_len),
    }


def without_folders(options: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """The arguments, words in place of the folders of draft models."""
    folders = [config["model"] for config in options.speculative_config if "model" in config]
    shown = []
    for argument in arguments:
        for folder in folders:
            argument = argument.replace(folder, "DRAFT_MODEL")
        shown.append(argument)
    return shown


ORDER_NAMES = {"mixed": "its six tasks in turn", "file": "in the file's order"}


def describe_model(folder: Path) -> dict[str, str]:
    """The target's shape, from its config.json; no path."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    heads = config.get("num_attention_heads")
    return {
        "target": f"{config.get('model_type')}, {config.get('num_hidden_layers')} layers, hidden "
        f"{config.get('hidden_size')}, {heads} heads / "
        f"{config.get('num_key_value_heads', heads)} KV heads, feed-forward "
        f"{config.get('intermediate_size')}, vocabulary {config.get('vocab_size')}"
    }


def prompts_at(options: argparse.Namespace) -> dict[int, int]:
    """Prompts of each client, by the number of clients."""
    return {
        count: 1 if count >= options.one_prompt_from else options.prompts_per_client
        for count in options.clients
        if count > 1
    }


def prompts_needed(options: argparse.Namespace) -> int:
    """How many different prompts the run takes at most."""
    several: list[int] = [count * each for count, each in prompts_at(options).items()]
    single: int = options.prompts
    return max([*several, single])


def _make_quick(options: argparse.Namespace) -> None:
    options.clients, options.temperatures = [1, 2], [0.0, 1.0]
    options.prompts, options.prompts_per_client, options.max_prompt_tokens = 1, 1, 128
    options.new_tokens, options.warmup_tokens, options.repetitions = 16, 0, 1
    options.max_model_len = 512
    options.serve_option = [*options.serve_option, "--no-compile"]


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(kind: type[_Number]) -> Callable[[str], list[_Number]]:
    def chosen_of(text: str) -> list[_Number]:
        chosen = [kind(part) for part in text.split(",")]
        if any(number < 0 for number in chosen):
            raise argparse.ArgumentTypeError(f"{text!r}: none may be negative")
        return chosen

    return chosen_of
