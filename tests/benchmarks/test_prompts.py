from __future__ import annotations

import ast
import gzip
import json
from pathlib import Path

import pytest

from benchmarks.prompts import RawPrompt, code_edits, encode, load_set, raw_prompts


class Letters:
    """One token a character; the template wraps a message in angle brackets."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return ([0] if add_special_tokens else []) + [ord(letter) for letter in text]

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert add_generation_prompt
        return f"<{conversation[0]['content']}>"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["w1", "later"]},
        {"question_id": 2, "category": "roleplay", "turns": ["r1"]},
        {"question_id": 3, "category": "writing", "turns": ["w2"]},
        {"question_id": 4, "category": "roleplay", "turns": ["r2"]},
        {"question_id": 5, "category": "rag", "turns": ["a much longer text"]},
        {"question_id": 6, "category": "rag", "turns": ["short"]},
    ]
    (tmp_path / "spec_bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as handle:
        handle.write(json.dumps({"task_id": "HumanEval/0", "prompt": "def f"}) + "\n")
    return tmp_path


def test_chat_takes_first_turns_of_both_categories_in_turn(data: Path) -> None:
    assert [raw.text for raw in raw_prompts("chat", data)] == ["w1", "r1", "w2", "r2"]


def test_prompts_that_are_too_long_are_passed_over(data: Path) -> None:
    (prompt,) = load_set("rag", data, Letters(), limit=1, max_prompt_tokens=10)
    assert prompt.name == "rag-6"


def test_rewrite_asks_for_long_functions_under_another_name(data: Path) -> None:
    with gzip.open(data / "HumanEval.jsonl.gz", "wt") as handle:
        for name, length in (("short", 10), ("long", 600)):
            row = {"task_id": name, "prompt": f"def {name}():\n", "entry_point": name}
            row["canonical_solution"] = "    pass\n" + "#" * length
            handle.write(json.dumps(row) + "\n")
    (raw,) = raw_prompts("rewrite", data)
    assert raw.name == "long" and not raw.chat
    assert raw.text.startswith("Original code:\n\n```python\ndef long():")
    assert raw.text.endswith("renamed to long_v2:\n\n```python\n")


def test_too_few_prompts_are_an_error(data: Path) -> None:
    with pytest.raises(ValueError, match=r"'rag' has 1 prompts of at most 10 tokens; 2"):
        load_set("rag", data, Letters(), limit=2, max_prompt_tokens=10)


def test_code_is_continued_and_chat_goes_through_the_template(data: Path) -> None:
    (completion,) = load_set("humaneval", data, Letters(), 1, 100)
    assert completion.token_ids == (0, *map(ord, "def f"))
    assert encode(RawPrompt("x", "hi", chat=True), Letters()) == [*map(ord, "<hi>")]


def test_an_unknown_set_is_named(data: Path) -> None:
    with pytest.raises(ValueError, match="unknown prompt set 'news'; known are summarization"):
        load_set("news", data, Letters(), 1, 100)


def test_code_edits_are_distinct_python_with_one_change_each() -> None:
    edits = list(code_edits())
    assert 12 <= len(edits) <= 20
    assert len({edit.name for edit in edits}) == len({edit.text for edit in edits}) == len(edits)
    for edit in edits:
        instruction, _, rest = edit.text.partition("\n\n```python\n")
        assert instruction.endswith("Return the complete code and nothing else.")
        assert edit.chat
        ast.parse(rest.removesuffix("```"))
