"""Draft models are found and held against the target from files alone, before one is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.checkpoints import ModelStore
from outrider.config import SpeculativeConfig
from outrider.draft_model_folders import find_draft_models
from outrider.errors import InputError
from outrider.model_folders import Model
from outrider.speculative_options import parse_speculative_config

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
VOCABULARY = {"a": 0, "b": 1}


def make(folder: Path, *, limit: int | None = 2048, **tokenizer: Any) -> Path:
    folder.mkdir()
    config: dict[str, object] = {"model_type": "llama"}
    if limit is not None:
        config["max_position_embeddings"] = limit
    (folder / "config.json").write_text(json.dumps(config))
    content = {"model": {"vocab": VOCABULARY}, **tokenizer}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Model:
    return Model(make(tmp_path / "target", limit=4096), "target")


def draft(folder: Path, **keys: object) -> dict[str, object]:
    return {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3, **keys}


def find(target: Model, *entries: dict[str, object], **options: Any) -> list[SpeculativeConfig]:
    store = ModelStore(target.folder.parent / "cache")

    def pull(name: str) -> Path:
        assert name == "smollm2-135m"
        return target.folder.parent / "pulled"

    configs = parse_speculative_config(list(entries))
    return list(find_draft_models(configs, target, store, pull, option="-sc", **options))


def refusal(target: Model, *entries: dict[str, object], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        find(target, *entries, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_become_folders_and_others_stay(tmp_path: Path, target: Model) -> None:
    make(tmp_path / "pulled")
    ngram, model = find(target, NGRAM, draft(Path("smollm2-135m"), quantization="int8"))
    assert ngram == parse_speculative_config(NGRAM)[0]
    assert (model.model, model.quantization) == (str(tmp_path / "pulled"), "int8")
    # What nobody wrote stays unset, so that no child is told it.
    assert model.model_fields_set == {"method", "model", "num_speculative_tokens", "quantization"}


def test_a_relative_folder_becomes_an_absolute_one(
    tmp_path: Path, target: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    (config,) = find(target, draft(Path("./small")))
    assert config.model == str(tmp_path / "small")


def test_a_model_that_is_not_there(tmp_path: Path, target: Model) -> None:
    text = refusal(target, draft(Path("smolm2-135m")))
    assert text.startswith("-sc: model: there is no folder 'smolm2-135m'")
    assert "did you mean smollm2-135m?" in text
    (tmp_path / "empty").mkdir()
    assert "empty has no config.json" in refusal(target, draft(tmp_path / "empty"))
    folder = make(tmp_path / "small")
    assert "has no revision 'v1'" in refusal(target, draft(folder, revision="v1"))


@pytest.mark.parametrize(
    ("of_draft", "of_target", "asked", "expected"),
    [
        (2048, None, None, None),
        (8192, None, None, 4096),
        (8192, 1000, None, 1000),
        (512, 1000, None, None),
        (2048, None, 2048, 2048),
        (2048, 2000, 100, 100),
        (None, 1000, None, None),
        (None, 1000, 1000, 1000),
    ],
)
def test_the_draft_model_is_no_longer_than_the_target(
    tmp_path: Path,
    target: Model,
    of_draft: int | None,
    of_target: int | None,
    asked: int | None,
    expected: int | None,
) -> None:
    folder = make(tmp_path / "small", limit=of_draft)
    entry = draft(folder, **({} if asked is None else {"max_model_len": asked}))
    (config,) = find(target, entry, max_model_len=of_target)
    assert config.max_model_len == expected


def test_a_longer_one_is_refused(tmp_path: Path, target: Model) -> None:
    entry = draft(make(tmp_path / "small"), max_model_len=2049)
    assert (
        refusal(target, entry)
        == f"-sc: max_model_len: 2049: the draft model {entry['model']} takes at most 2048"
    )
    entry["max_model_len"] = 1001
    assert refusal(target, entry, max_model_len=1000).endswith(
        "max_model_len: 1001: the target takes at most 1000"
    )


def test_eager_is_taken_over_where_nothing_else_is_said(tmp_path: Path, target: Model) -> None:
    folder = make(tmp_path / "small")
    silent, compiled = draft(folder), draft(folder, enforce_eager=False)
    configs = find(target, silent, compiled, enforce_eager=True)
    assert [config.enforce_eager for config in configs] == [True, False]
    assert not find(target, silent)[0].enforce_eager


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"model": {"vocab": {"a": 1, "b": 0}}},
        {"model": {"vocab": {"a": 0, "b": 1, "c": 2}}},
        {"added_tokens": [{"content": "<end>", "id": 2}]},
        {"model": {"vocab": [["b", -1.0], ["a", -2.0]]}},
    ],
)
def test_another_vocabulary_is_refused(
    tmp_path: Path, target: Model, tokenizer: dict[str, object]
) -> None:
    folder = make(tmp_path / "small", **tokenizer)
    text = refusal(target, draft(folder))
    assert text.startswith(f"-sc: model: {folder} drafts in another vocabulary (")
    assert "the target's (2 tokens); a draft model must have the target's tokenizer" in text


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"model": {"vocab": {"b": 1, "a": 0}}, "padding": None},
        {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}},
        # What cannot be read here is for whoever reads it in earnest.
        {"model": {"vocab": None}},
        {"added_tokens": [{"id": 2}]},
    ],
)
def test_the_same_vocabulary_otherwise_written_fits(
    tmp_path: Path, target: Model, tokenizer: dict[str, object]
) -> None:
    assert find(target, draft(make(tmp_path / "small", **tokenizer)))


def test_tokens_may_be_added_in_either_file(tmp_path: Path, target: Model) -> None:
    (target.folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"2": {"content": "<end>"}}})
    )
    folder = make(tmp_path / "small", added_tokens=[{"content": "<end>", "id": 2}])
    assert find(target, draft(folder))
