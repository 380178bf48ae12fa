"""Spec-Bench's first turns as the GPU benchmark takes them: all tasks, through the chat template.

Knows the order of the prompts; the file's format and the template are prompts.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.prompts import SPEC_BENCH, Prompt, RawPrompt, Tokenizer, encode

# One task of Spec-Bench's six, and the categories of its questions.
MT_BENCH = (
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
)
TASKS = (
    MT_BENCH,
    ("translation",),
    ("summarization",),
    ("qa",),
    ("math_reasoning",),
    ("rag",),
)
ORDERS = ("mixed", "file")

_Item = TypeVar("_Item")


def load_first_turns(
    path: Path, tokenizer: Tokenizer, limit: int, max_prompt_tokens: int, order: str
) -> list[Prompt]:
    """The first `limit` prompts of at most `max_prompt_tokens` tokens.

    `path` is Spec-Bench's file or a folder with it. `order` "mixed" takes the six tasks in turn,
    so that any number of prompts holds them in equal shares; "file" takes the file's order. Raises
    ValueError where there are too few, FileNotFoundError naming a missing file.
    """
    if order not in ORDERS:
        raise ValueError(f"order {order!r}; allowed are {', '.join(ORDERS)}")
    rows = _rows(path / SPEC_BENCH if path.is_dir() else path)

    def fitting(some: Iterable[dict[str, Any]]) -> Iterator[Prompt]:
        for row in some:
            name = f"{row['category']}-{row['question_id']}"
            ids = tuple(encode(RawPrompt(name, row["turns"][0], chat=True), tokenizer))
            if len(ids) <= max_prompt_tokens:
                yield Prompt(name, ids)

    if order == "mixed":
        prompts = _in_turn([fitting(_interleaved(rows, task)) for task in TASKS])
    else:
        prompts = fitting(rows)
    chosen = list(islice(prompts, limit))
    if len(chosen) < limit:
        raise ValueError(
            f"{path.name} has {len(chosen)} prompts of at most {max_prompt_tokens} tokens; "
            f"{limit} were asked for"
        )
    return chosen


def _interleaved(
    rows: list[dict[str, Any]], categories: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    return _in_turn([iter([r for r in rows if r["category"] == name]) for name in categories])


def _in_turn(queues: list[Iterator[_Item]]) -> Iterator[_Item]:
    """One of each in turn, until the longest is exhausted."""
    left = list(queues)
    while left:
        heads = [list(islice(queue, 1)) for queue in left]
        yield from chain.from_iterable(heads)
        left = [queue for queue, head in zip(left, heads, strict=True) if head]


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
