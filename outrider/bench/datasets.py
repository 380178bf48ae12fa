"""The data sets by name: their files' formats, and where a missing file is to be had.

Knows files and their rows; fetches nothing and knows no server. A file may be gzipped.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from outrider.bench.samples import Sample
from outrider.config import shorten
from outrider.errors import InputError

OWN: Final = "outrider"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dataset:
    """How one set's rows become samples. `source` tells where its file comes from."""

    parse: Callable[[str, Row], Sample | None]
    source: str
    output_len: int = 256


def load(name: str, path: Path | None, *, category: str | None = None) -> list[Sample]:
    """All samples of a set, in the file's order; of `category` only, where one is given.

    Raises InputError for an unknown set, a file that is missing or malformed, or no sample.
    """
    dataset = DATASETS.get(name)
    if dataset is None:
        if name in _ELSEWHERE:
            raise InputError(
                f"--dataset-name: {name!r} is vLLM's and not here: {_ELSEWHERE[name]}; choose one "
                f"of {', '.join(DATASETS)}"
            )
        raise InputError(f"--dataset-name: {name!r} is not one of {', '.join(DATASETS)}")
    if path is None:
        if name != OWN:
            raise InputError(
                f"--dataset-path: {name} needs its file, which Outrider does not ship; "
                f"{dataset.source}"
            )
        text = (resources.files("outrider.bench") / "data" / f"{OWN}.jsonl").read_text("utf-8")
        where = f"the set {OWN}"
    else:
        text = _read(path, dataset)
        where = str(path)
    samples = [
        sample
        for label, row in _rows(text, where)
        if (sample := _parse(dataset, label, row)) is not None
    ]
    if category is not None:
        known = sorted({sample.category for sample in samples})
        samples = [sample for sample in samples if sample.category == category]
        if not samples:
            raise InputError(
                f"--dataset-category: {category!r} is not in {where}; it has "
                f"{', '.join(filter(None, known)) or 'no categories'}"
            )
    if not samples:
        raise InputError(f"--dataset-path: {where} holds no prompt")
    return samples


def _read(path: Path, dataset: Dataset) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"--dataset-path: there is no file {path}; {dataset.source}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"--dataset-path: {path} cannot be read: {reason.lower()}") from error
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"--dataset-path: {path} is neither text nor gzipped text") from error


def _rows(text: str, where: str) -> Iterator[tuple[str, Row]]:
    """(label, row) of each line, or of each entry where the whole is one JSON list."""
    if text.lstrip().startswith("["):
        try:
            entries = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"--dataset-path: {where} is not JSON: {error}") from error
        numbered = [(f"{where}, entry {i}", entry) for i, entry in enumerate(entries, 1)]
    else:
        numbered = []
        for i, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                numbered.append((f"{where}, line {i}", json.loads(line)))
            except json.JSONDecodeError as error:
                raise InputError(
                    f"--dataset-path: {where}, line {i} is not JSON: {shorten(line.strip())}"
                ) from error
    for label, row in numbered:
        if not isinstance(row, dict):
            raise InputError(f"--dataset-path: {label} is not an object: {shorten(repr(row))}")
        yield label, row


def _parse(dataset: Dataset, label: str, row: Row) -> Sample | None:
    try:
        sample = dataset.parse(label, row)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"--dataset-path: {label} is no row of this set: {missing}; {dataset.source}"
        ) from error
    return sample


def _text(row: Row, key: str) -> str:
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is {shorten(repr(value))}; it must be a text")
    return value


def _own(label: str, row: Row) -> Sample:
    return Sample(_text(row, "name"), _text(row, "prompt"), category=row["category"])


def _spec_bench(label: str, row: Row) -> Sample:
    first = row["turns"][0]
    if not isinstance(first, str):
        raise ValueError("turns must be a list of texts")
    return Sample(f"{row['category']}-{row['question_id']}", first, category=row["category"])


def _human_eval(label: str, row: Row) -> Sample:
    code = _text(row, "prompt")
    asked = f"Complete this function and return the whole code.\n\n```python\n{code.rstrip()}\n```"
    return Sample(row["task_id"], code, chat_text=asked)


def _gsm8k(label: str, row: Row) -> Sample:
    question = _text(row, "question")
    continued = f"Question: {question}\nAnswer:"
    return Sample(label.rpartition(", ")[2], continued, chat_text=question)


def _sharegpt(label: str, row: Row) -> Sample | None:
    """The first turn of a conversation that a person opens and somebody answers."""
    turns = row.get("conversations", row.get("conversation", []))
    if len(turns) < 2 or turns[0].get("from") not in ("human", "user"):
        return None
    said = turns[0]["value"]
    return Sample(str(row.get("id", label)), said) if said.strip() else None


def _custom(label: str, row: Row) -> Sample:
    name = str(row.get("name", row.get("id", label.rpartition(", ")[2])))
    output_len = row.get("output_len", row.get("output_tokens"))
    if output_len is not None and (isinstance(output_len, bool) or not isinstance(output_len, int)):
        raise ValueError(f"output_len is {output_len!r}; it must be a number of tokens")
    if output_len is not None and output_len < 1:
        raise ValueError(f"output_len is {output_len}; it must be at least 1")
    category = str(row.get("category", ""))
    if "messages" in row:
        messages = row["messages"]
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages must be a list of messages")
        if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
            raise ValueError("each of messages must be an object with role and content")
        whole = tuple(dict(message) for message in messages)
        return Sample(name, messages=whole, category=category, output_len=output_len)
    return Sample(name, _text(row, "prompt"), category=category, output_len=output_len)


_NOISE: Final = "nothing can be guessed of text that was made up at random"
_NO_TEXT: Final = "prompts are texts"
# Names of `vllm bench` that someone may type.
_ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("random", "burstgpt", "prefix_repetition", "timed_trace"), _NOISE),
    **dict.fromkeys(("random-mm", "custom_audio", "custom_image", "random-rerank"), _NO_TEXT),
    "hf": "no data set is fetched from a hub; give its file as custom",
    "sonnet": "give the file as custom",
    "speed_bench": "give its file as custom",
}
DATASETS: Final[Mapping[str, Dataset]] = {
    OWN: Dataset(_own, "each line needs name, category and prompt", 128),
    "spec_bench": Dataset(
        _spec_bench,
        "take data/spec_bench/question.jsonl from github.com/hemingkx/Spec-Bench (each line has "
        "question_id, category and turns)",
    ),
    "humaneval": Dataset(
        _human_eval,
        "take data/HumanEval.jsonl.gz from github.com/openai/human-eval (each line has task_id "
        "and prompt)",
    ),
    "gsm8k": Dataset(
        _gsm8k,
        "take grade_school_math/data/test.jsonl from github.com/openai/grade-school-math (each "
        "line has question)",
    ),
    "sharegpt": Dataset(
        _sharegpt,
        "take ShareGPT_V3_unfiltered_cleaned_split.json from the data set "
        "anon8231489123/ShareGPT_Vicuna_unfiltered of the Hugging Face hub (a list of objects "
        "with conversations)",
    ),
    "custom": Dataset(
        _custom,
        'write one JSON object a line: {"prompt": "..."} or {"messages": [...]}, with output_len '
        "and category where wanted",
    ),
}
