"""Every data set's rows, on files of a few lines."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outrider.bench.datasets import DATASETS, load
from outrider.bench.samples import Backend, Sample, choose
from outrider.errors import InputError


def written(folder: Path, *rows: Any, name: str = "set.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_our_own_set_is_in_the_package() -> None:
    samples = load("outrider", None)
    assert Counter(sample.category for sample in samples) == dict.fromkeys(
        ("chat", "code", "summarise", "rewrite", "extraction"), 8
    )
    assert len({sample.name for sample in samples}) == len({s.text for s in samples}) == 40


def test_spec_bench_takes_first_turns(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
        {"question_id": 82, "category": "math", "turns": ["1+1?"]},
    )
    assert load("spec_bench", path) == [
        Sample("writing-81", "First.", category="writing"),
        Sample("math-82", "1+1?", category="math"),
    ]
    assert [s.name for s in load("spec_bench", path, category="math")] == ["math-82"]
    with pytest.raises(InputError, match=r"'maths' is not in .*; it has math, writing"):
        load("spec_bench", path, category="maths")


def test_humaneval_is_continued_or_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "x"}
    path.write_bytes(gzip.compress((json.dumps(row) + "\n").encode()))
    (sample,) = load("humaneval", path)
    assert sample.prompt_fields(Backend.COMPLETIONS) == {"prompt": "def f():\n"}
    asked = sample.prompt_fields(Backend.CHAT)["messages"][0]["content"]
    assert asked.endswith("```python\ndef f():\n```")


def test_gsm8k_is_a_question(tmp_path: Path) -> None:
    (sample,) = load("gsm8k", written(tmp_path, {"question": "How many?", "answer": "2"}))
    assert sample.prompt_fields(Backend.COMPLETIONS) == {"prompt": "Question: How many?\nAnswer:"}
    assert sample.prompt_fields(Backend.CHAT)["messages"][0]["content"] == "How many?"


def test_sharegpt_takes_what_a_person_opens_and_somebody_answers(tmp_path: Path) -> None:
    def conversation(name: str, *turns: tuple[str, str]) -> dict[str, Any]:
        return {"id": name, "conversations": [{"from": who, "value": said} for who, said in turns]}

    path = tmp_path / "share.json"
    path.write_text(
        json.dumps(
            [
                conversation("a", ("human", "Hello?"), ("gpt", "Yes.")),
                conversation("b", ("gpt", "Go on."), ("human", "No.")),
                conversation("c", ("human", "Alone.")),
                conversation("d", ("human", " "), ("gpt", "What?")),
                {"id": "e"},
            ]
        )
    )
    assert load("sharegpt", path) == [Sample("a", "Hello?")]


def test_custom_rows_are_prompts_or_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    path = written(
        tmp_path,
        {"prompt": "One.", "output_len": 5, "category": "x", "name": "n"},
        {"prompt": "Two.", "output_tokens": 6},
        {"messages": messages},
    )
    one, two, three = load("custom", path)
    assert one == Sample("n", "One.", category="x", output_len=5)
    assert (two.name, two.output_len) == ("line 2", 6)
    assert three.prompt_fields(Backend.CHAT) == {"messages": messages}
    with pytest.raises(InputError, match=r"'openai' cannot send line 3.*--backend openai-chat"):
        three.prompt_fields(Backend.COMPLETIONS)


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "outrider"])
def test_a_missing_file_says_which_and_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} needs its file") as caught:
        load(name, None)
    assert DATASETS[name].source in str(caught.value)
    with pytest.raises(InputError, match=r"there is no file .*nowhere") as caught:
        load(name, tmp_path / "nowhere")
    assert DATASETS[name].source in str(caught.value)


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'alpaca' is not one of outrider, spec_bench"):
        load("alpaca", None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("custom", '{"prompt": "a"}\n{oops\n', r"line 2 is not JSON: \{oops"),
        ("custom", '"text"\n', "line 1 is not an object"),
        ("custom", "[3]", "entry 1 is not an object"),
        ("custom", "[{", "is not JSON"),
        ("custom", '{"text": "a"}\n', "it has no 'prompt'"),
        ("custom", '{"prompt": 3}\n', "prompt is 3; it must be a text"),
        ("custom", '{"prompt": " "}\n', "it must be a text"),
        ("custom", '{"prompt": "a", "output_len": "5"}\n', "output_len is '5'"),
        ("custom", '{"prompt": "a", "output_len": 0}\n', "must be at least 1"),
        ("custom", '{"messages": []}\n', "messages must be a list of messages"),
        ("custom", '{"messages": [3]}\n', "is no row of this set"),
        ("custom", "\n", "holds no prompt"),
        ("spec_bench", '{"question_id": 1, "category": "a", "turns": []}\n', "is no row"),
        ("spec_bench", '{"question_id": 1, "turns": ["a"]}\n', "it has no 'category'"),
        ("spec_bench", '{"question_id": 1, "category": "a", "turns": [["x"]]}\n', "list of texts"),
        ("sharegpt", "[]", "holds no prompt"),
    ],
)
def test_a_malformed_file_says_where(name: str, content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "set"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        load(name, path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.gz"
    path.write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(InputError, match="neither text nor gzipped text"):
        load("custom", path)
    with pytest.raises(InputError, match="cannot be read: is a directory"):
        load("custom", tmp_path)


SAMPLES = [Sample(str(i), output_len=i + 1) for i in range(5)]


def test_by_default_as_many_as_there_are_up_to_a_number() -> None:
    chosen = choose(SAMPLES, None, default_count=3)
    assert (len(chosen.samples), chosen.repeated) == (3, False)
    assert len(choose(SAMPLES, None, default_count=9).samples) == 5


def test_more_than_there_are_begin_anew() -> None:
    chosen = choose(SAMPLES, 12, default_count=3)
    assert chosen.repeated
    counts = Counter(sample.name for sample in chosen.samples)
    assert sorted(counts.values()) == [2, 2, 2, 3, 3]


def test_the_order_depends_on_the_seed_only() -> None:
    def names(seed: int) -> list[str]:
        return [s.name for s in choose(SAMPLES, None, default_count=5, seed=seed).samples]

    assert names(1) == names(1) != names(2)
    kept = choose(SAMPLES, None, default_count=5, shuffle=False).samples
    assert kept == tuple(SAMPLES)


def test_one_length_for_all() -> None:
    chosen = choose(SAMPLES, None, default_count=5, output_len=7)
    assert {sample.output_len for sample in chosen.samples} == {7}
