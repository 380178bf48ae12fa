from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu_prompts import MT_BENCH, TASKS, load_first_turns


class Words:
    """One token a word; the chat template is a mark before it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [len(word) for word in text.split()]

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        return f"user {conversation[0]['content']}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = []
    for task in TASKS:
        for category in task:
            for n in range(3):
                words = "word " * (40 if category == "rag" and n == 0 else 3)
                lines.append(
                    {
                        "question_id": f"{category}{n}",
                        "category": category,
                        "turns": [words, "never asked"],
                    }
                )
    path = tmp_path / "spec_bench.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_mixed_takes_one_of_each_task_in_turn(file: Path) -> None:
    names = [prompt.name for prompt in load_first_turns(file, Words(), 12, 100, "mixed")]
    assert names[:6] == [f"{task[0]}-{task[0]}0" for task in TASKS]
    # The second round has the next question of each, of MT-bench the next category.
    assert names[6:8] == [f"{MT_BENCH[1]}-{MT_BENCH[1]}0", "translation-translation1"]


def test_shorter_tasks_end_and_the_others_go_on(file: Path) -> None:
    prompts = load_first_turns(file, Words(), 8 * 3 + 5 * 3, 100, "mixed")
    assert len({prompt.name for prompt in prompts}) == 39


def test_the_files_order_is_kept_where_asked(file: Path) -> None:
    names = [prompt.name for prompt in load_first_turns(file, Words(), 4, 100, "file")]
    assert names == [
        "writing-writing0",
        "writing-writing1",
        "writing-writing2",
        "roleplay-roleplay0",
    ]


def test_long_prompts_are_passed_over_and_the_template_is_applied(file: Path) -> None:
    prompts = load_first_turns(file.parent, Words(), 6, 10, "mixed")
    assert prompts[5].name == "rag-rag1"
    assert prompts[0].token_ids == (4, 4, 4, 4)


def test_too_few_prompts_and_unknown_orders_are_errors(file: Path) -> None:
    with pytest.raises(ValueError, match="has 38 prompts of at most 10 tokens; 39 were asked for"):
        load_first_turns(file, Words(), 39, 10, "mixed")
    with pytest.raises(ValueError, match="order 'random'; allowed are mixed, file"):
        load_first_turns(file, Words(), 1, 10, "random")
