"""`outrider.LLM` on a card: does it answer, equally with and without drafts, and how fast.

    python -m benchmarks.gpu_llm_smoke --model FOLDER --data SPEC_BENCH

Knows the offline interface alone. A smoke run: one pass of each, no repetitions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cpu_report import table_line
from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.gpu_prompts import load_first_turns
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.report_files import write_report
from outrider import LLM, SamplingParams
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.model_folders import resolve_model

PLACEHOLDERS = {"--model": "MODEL", "--data": "DATA", "--out": "OUT"}
MODES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"enabled": False},
    "ngram": {"proposer": "ngram"},
    "both": {},
}


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """`lines` have mode, temperature, tokens a second and how many answers equal plain's."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    start_seconds: float
    lines: tuple[Mapping[str, Any], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "start_seconds": self.start_seconds,
            "lines": [dict(line) for line in self.lines],
        }

    def to_markdown(self) -> str:
        shown = "; ".join(f"{name} {value}" for name, value in self.machine.items())
        rows = [table_line(["", "tokens/s", "answers equal plain's"]), "| --- | ---: | ---: |"]
        rows += [
            table_line(
                [
                    f"{line['mode']}, T={line['temperature']:g}",
                    f"{line['tokens_per_second']:,.0f}",
                    f"{line['same']}/{line['answers']}",
                ]
            )
            for line in self.lines
        ]
        start = f"Started in {self.start_seconds:.0f} s. Machine: {shown}."
        head = ["# `outrider.LLM` on a card", f"`{self.command}`", start]
        return "\n\n".join([*head, "\n".join(rows)]) + "\n"


def answer(
    llm: LLM, prompts: Sequence[Sequence[int]], temperature: float, new_tokens: int, mode: str
) -> tuple[list[tuple[int, ...]], float]:
    """All answers as ids, and the seconds they took together."""
    sampling = [
        SamplingParams(temperature=temperature, seed=number, max_tokens=new_tokens, ignore_eos=True)
        for number in range(len(prompts))
    ]
    began = time.perf_counter()
    outputs = llm.generate(
        [list(prompt) for prompt in prompts],
        sampling,
        use_tqdm=False,
        speculative_decoding=MODES[mode],
    )
    seconds = time.perf_counter() - began
    return [tuple(output.outputs[0].token_ids) for output in outputs], seconds


def measure(
    llm: LLM, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], new_tokens: int
) -> list[dict[str, Any]]:
    """One line for each temperature and mode; the first pass, which warms up, is not one."""
    answer(llm, prompts, temperatures[0], new_tokens, "both")
    lines = []
    for temperature in temperatures:
        plain: list[tuple[int, ...]] = []
        for mode in MODES:
            ids, seconds = answer(llm, prompts, temperature, new_tokens, mode)
            plain = plain or ids
            lines.append(
                {
                    "mode": mode,
                    "temperature": temperature,
                    "tokens_per_second": round(sum(map(len, ids)) / seconds, 1),
                    "same": sum(a == b for a, b in zip(ids, plain, strict=True)),
                    "answers": len(ids),
                }
            )
    return lines


def run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    from benchmarks.transformers_system import load_tokenizer

    store = ModelStore(cache_directory())
    model = resolve_model(options.model, store, refuse_to_pull, "--model").folder
    longest = options.max_model_len - options.new_tokens - 1
    chosen = load_first_turns(
        options.data, load_tokenizer(model), options.prompts, longest, "mixed"
    )
    began = time.monotonic()
    drafts = [{"method": name, "num_speculative_tokens": 4} for name in ("ngram", "suffix")]
    with LLM(
        str(model),
        speculative_config=drafts,
        device=options.device,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=options.prompts,
    ) as llm:
        started = round(time.monotonic() - began, 1)
        prompts = [prompt.token_ids for prompt in chosen]
        lines = measure(llm, prompts, (0.0, 1.0), options.new_tokens)
    report = SmokeReport(
        command=public_command("benchmarks.gpu_llm_smoke", arguments, PLACEHOLDERS),
        machine=describe_machine(),
        versions=versions(["outrider", "torch", "transformers"]),
        start_seconds=started,
        lines=tuple(lines),
    )
    write_report(report, options.out, options.name)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_llm_smoke",
        description="Does outrider.LLM answer on a card, and how fast?",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="a folder or a pulled model's name")
    add("--data", type=Path, default=Path("data"), help="Spec-Bench's file or its folder")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    add("--prompts", type=int, default=8, help="all at once")
    add("--new-tokens", type=int, default=128)
    add("--max-model-len", type=int, default=4096)
    add("--out", type=Path, default=Path("docs/benchmarks"))
    add("--name", default="gpu_llm", help="of the files, without ending")
    return parser.parse_args(arguments)


def main() -> int:
    arguments = sys.argv[1:]
    options = parse(arguments)

    def work() -> bool:
        run(options, arguments)
        return True

    return end_with(work, Console(stderr=True))


if __name__ == "__main__":
    raise SystemExit(main())
