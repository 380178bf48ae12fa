"""The prompt sets of the CPU benchmark, as token ids.

Knows the files' formats and how each set is put to the model; knows no system that answers. All
systems get the same ids, so none of them can differ by its template or tokenizer.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

CODE_EDITS = Path(__file__).parent / "data" / "code_edits.jsonl"
SPEC_BENCH = "spec_bench.jsonl"
HUMAN_EVAL = "HumanEval.jsonl.gz"

# Set name -> the Spec-Bench categories it takes, first turns only.
SPEC_BENCH_SETS = {
    "summarization": ("summarization",),
    "rag": ("rag",),
    "chat": ("writing", "roleplay"),
}
SET_NAMES = (*SPEC_BENCH_SETS, "humaneval", "rewrite", "edits")

# Functions shorter than this many characters would be rewritten before an answer's 128 tokens
# are full, and what follows is no rewriting.
_REWRITE_MIN_CHARACTERS = 500


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as every system gets it."""

    name: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """`text` is a user's chat message, or text to be continued where `chat` is false."""

    name: str
    text: str
    chat: bool


def load_set(
    name: str, data: Path, tokenizer: Tokenizer, limit: int, max_prompt_tokens: int
) -> list[Prompt]:
    """The first `limit` prompts of a set that are not longer than `max_prompt_tokens`.

    `data` is the folder with Spec-Bench and HumanEval. Raises ValueError for an unknown set or
    one with fewer fitting prompts, FileNotFoundError naming the file that is missing.
    """
    prompts: list[Prompt] = []
    for raw in raw_prompts(name, data):
        prompt = Prompt(raw.name, tuple(encode(raw, tokenizer)))
        if len(prompt.token_ids) <= max_prompt_tokens:
            prompts.append(prompt)
        if len(prompts) == limit:
            return prompts
    raise ValueError(
        f"set {name!r} has {len(prompts)} prompts of at most {max_prompt_tokens} tokens; "
        f"{limit} were asked for"
    )


def raw_prompts(name: str, data: Path) -> Iterator[RawPrompt]:
    """All prompts of a set in the order of its file; `chat` alternates its two categories."""
    if name in SPEC_BENCH_SETS:
        yield from _spec_bench(data / SPEC_BENCH, SPEC_BENCH_SETS[name])
    elif name == "humaneval":
        yield from _human_eval(data / HUMAN_EVAL)
    elif name == "rewrite":
        yield from _rewrites(data / HUMAN_EVAL)
    elif name == "edits":
        yield from code_edits()
    else:
        raise ValueError(f"unknown prompt set {name!r}; known are {', '.join(SET_NAMES)}")


def encode(raw: RawPrompt, tokenizer: Tokenizer) -> list[int]:
    """Token ids; chat messages through the model's own template."""
    if not raw.chat:
        return tokenizer.encode(raw.text, add_special_tokens=True)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": raw.text}], tokenize=False, add_generation_prompt=True
    )
    return tokenizer.encode(text, add_special_tokens=False)


def code_edits() -> Iterator[RawPrompt]:
    """Our own set: short Python code, one change to make, the whole code to be returned."""
    for row in _json_lines(CODE_EDITS):
        text = (
            f"{row['instruction']} Return the complete code and nothing else.\n\n"
            f"```python\n{row['code']}```"
        )
        yield RawPrompt(row["id"], text, chat=True)


def _spec_bench(path: Path, categories: Sequence[str]) -> Iterator[RawPrompt]:
    rows: dict[str, list[RawPrompt]] = {category: [] for category in categories}
    for row in _json_lines(path):
        if row["category"] in rows:
            name = f"{row['category']}-{row['question_id']}"
            rows[row["category"]].append(RawPrompt(name, row["turns"][0], chat=True))
    for group in zip(*rows.values(), strict=True):
        yield from group


def _human_eval(path: Path) -> Iterator[RawPrompt]:
    for row in _gzip_lines(path):
        yield RawPrompt(row["task_id"], row["prompt"], chat=False)


def _rewrites(path: Path) -> Iterator[RawPrompt]:
    """HumanEval's functions with their solutions, to be returned under another name."""
    for row in _gzip_lines(path):
        code = row["prompt"] + row["canonical_solution"]
        if len(code) < _REWRITE_MIN_CHARACTERS:
            continue
        new = f"{row['entry_point']}_v2"
        text = (
            f"Original code:\n\n```python\n{code.strip()}\n```\n\n"
            f"The same code with the function renamed to {new}:\n\n```python\n"
        )
        yield RawPrompt(row["task_id"], text, chat=False)


def _gzip_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
