"""Tokens a second of `outrider serve` with telemetry over those without, on this machine.

    python -m benchmarks.telemetry_two_servers --model smollm2-135m

Two servers of the same model run side by side, and each unit of prompts is answered by both, one
after the other: what the machine does meanwhile hits both alike. The one that starts alternates.
Whether both gave the same tokens is checked too. It is coarse (telemetry_cost.py is fine), but one
of the two has no telemetry at all, and the other may tell each round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console

from benchmarks.entry import end_with, refuse_to_pull
from benchmarks.machine import describe_machine, public_command, versions
from benchmarks.outrider_system import OutriderServer, OutriderSystem
from benchmarks.prompts import Prompt, load_set
from benchmarks.systems import Answer, Work
from benchmarks.telemetry_page import NAME, CostReport
from outrider.checkpoints import ModelStore
from outrider.config import cache_directory
from outrider.errors import OperationError
from outrider.model_folders import resolve_model

MAX_PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Pair:
    """One unit: tokens a second without telemetry and with it."""

    without: float
    with_it: float

    @property
    def ratio(self) -> float:
        return self.with_it / self.without


@dataclass(frozen=True, slots=True)
class Result:
    """The median of pairs' ratios (1.0: it costs nothing), and the middle half of them."""

    ratio: float
    low: float
    high: float
    without: float
    with_it: float

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Result:
        ratios = [pair.ratio for pair in pairs]
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return cls(
            median(ratios),
            low,
            high,
            median(pair.without for pair in pairs),
            median(pair.with_it for pair in pairs),
        )


def works(prompts: Sequence[Prompt], clients: int, tokens: int, pairs: int) -> list[Work]:
    """One work for each pair; the prompts start anew where they are too few."""
    source = cycle(prompts)
    return [
        Work(
            tuple(prompt.token_ids for prompt in islice(source, clients)),
            (tokens,) * clients,
            temperature=0.0,
            seed=number,
        )
        for number in range(pairs)
    ]


def compare(without: OutriderSystem, with_it: OutriderSystem, work: Work, first: bool) -> Pair:
    """Both answers to `work`; `first` lets the one without telemetry begin.

    Raises OperationError where the answers differ.
    """
    answers: dict[bool, Answer] = {}
    for plain in (first, not first):
        answers[plain] = (without if plain else with_it).generate(work)
    if answers[True].outputs != answers[False].outputs:
        raise OperationError("the two servers gave different tokens")
    return Pair(*(answers[plain].new_tokens / answers[plain].seconds for plain in (True, False)))


def run(options: argparse.Namespace, console: Console) -> bool:
    model = resolve_model(options.model, ModelStore(cache_directory()), refuse_to_pull).folder
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
    prompts = load_set("edits", Path(), tokenizer, options.prompts, MAX_PROMPT_TOKENS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        systems = []
        for level in ("none", options.level):
            server = OutriderServer(
                str(model),
                folder / f"{level}.log",
                max_num_seqs=options.clients,
                extra=[
                    f"--trace-level={level}",
                    # Not the user's own.
                    f"--evidence-db={folder / level}.duckdb",
                    *options.serve_option,
                ],
            )
            systems.append(OutriderSystem(stack.enter_context(server).url, {}))
        all_works = works(prompts, options.clients, options.new_tokens, options.pairs + 1)
        # The first requests of a server are slower than all others.
        compare(systems[0], systems[1], all_works[0], True)
        pairs = []
        for number, work in enumerate(all_works[1:]):
            pairs.append(compare(systems[0], systems[1], work, number % 2 == 0))
            console.print(f"{number + 1}/{options.pairs}: {pairs[-1].ratio:.4f}")
    result = Result.of(pairs)
    console.print(
        f"--trace-level {options.level}: {result.ratio:.4f} of the speed without "
        f"(middle half {result.low:.4f} to {result.high:.4f}); "
        f"{result.with_it:.1f} against {result.without:.1f} tokens/s"
    )
    report = CostReport.load(options.out / f"{NAME}.json")
    replace(report, two_servers=_document(options, result, pairs)).write(options.out)
    return True


def _document(options: argparse.Namespace, result: Result, pairs: Sequence[Pair]) -> dict[str, Any]:
    given = [f"--{key.replace('_', '-')}={value}" for key, value in _shown(options).items()]
    return {
        "command": public_command("benchmarks.telemetry_two_servers", given, {}),
        "machine": describe_machine(),
        "versions": versions(["outrider", "torch", "opentelemetry-sdk"]),
        "result": asdict(result),
        "pairs": [asdict(pair) for pair in pairs],
    }


def _shown(options: argparse.Namespace) -> dict[str, object]:
    return {k: v for k, v in vars(options).items() if k not in ("out", "serve_option")}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--level", choices=("summary", "detailed"), default="summary")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--serve-option", action="append", default=[], help="of both servers")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    console = Console(stderr=True, highlight=False)
    options = parse(arguments)
    return end_with(lambda: run(options, console), console)


if __name__ == "__main__":
    sys.exit(main())
