"""What a MODEL argument means, and what a folder lacks."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import (
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from outrider.checkpoints import ModelStore
from outrider.errors import InputError, OperationError
from outrider.model_folders import check_model_folder, resolve_model

NOT_FOUND = httpx.Response(404, request=httpx.Request("GET", "http://hub.invalid"))
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def never(name: str) -> Path:
    raise AssertionError(f"{name} must not be pulled")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def lack(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        check_model_folder(folder)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_goes_by_its_name(folder: Path, store: ModelStore) -> None:
    model = resolve_model(str(folder), store, never)
    assert (model.folder, model.name) == (folder, "my-model")


def test_a_relative_folder(
    folder: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert resolve_model(".", store, never).name == "my-model"


@pytest.mark.parametrize(
    ("remove", "words"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_what_is_missing_is_named(folder: Path, remove: str, words: str) -> None:
    check_model_folder(folder)
    (folder / remove).unlink()
    assert words in lack(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "config.json is not JSON"),
        ("[]", "config.json is not a JSON object"),
        ("{}", "config.json has no model_type"),
        ('{"model_type": 3}', "config.json has no model_type"),
        ('{"model_type": "bert", "architectures": ["BertModel"]}', "no causal language model"),
        ('{"model_type": "bert", "architectures": "BertModel"}', "no causal language model"),
    ],
)
def test_broken_configs(folder: Path, content: str, words: str) -> None:
    (folder / "config.json").write_text(content)
    assert words in lack(folder)


def test_config_that_is_no_text(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "config.json is not JSON" in lack(folder)


def test_missing_shards(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00003.safetensors")
    index = {f"layer.{n}": f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert "lacks 2 of its weight files, first model-00002-of-00003" in lack(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "has no weight_map" in lack(folder)


def test_known_name_is_pulled_when_it_is_not_here(folder: Path, store: ModelStore) -> None:
    pulled: list[str] = []

    def pull(name: str) -> Path:
        pulled.append(name)
        return folder

    model = resolve_model("smollm2-135m", store, pull)
    assert pulled == ["smollm2-135m"]
    assert (model.folder, model.name) == (folder, "smollm2-135m")


@pytest.mark.parametrize("argument", ["/no/such", "./no", "~/no-such-folder", "a/b/c", "smolm2"])
def test_nothing_is_meant(argument: str, store: ModelStore) -> None:
    with pytest.raises(InputError, match=f"MODEL: there is no folder '{argument}'"):
        resolve_model(argument, store, never)


def test_near_miss_of_a_known_name(store: ModelStore) -> None:
    with pytest.raises(InputError, match="did you mean smollm2-135m"):
        resolve_model("smolm2-135m", store, never)


def test_a_file_is_no_model(tmp_path: Path, store: ModelStore) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(InputError, match="is a file; a model is a folder"):
        resolve_model(str(tmp_path / "model.gguf"), store, never)


def test_hub_id_is_fetched(
    folder: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def snapshot(repository: str, **options: object) -> str:
        asked.extend((repository, options["revision"]))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    model = resolve_model("org/some-model", store, never)
    assert (model.name, model.folder) == ("org/some-model", folder)
    resolve_model("org/some-model", store, never, revision="v2")
    assert asked == ["org/some-model", None, "org/some-model", "v2"]


def test_only_a_hubs_repository_has_revisions(folder: Path, store: ModelStore) -> None:
    for argument in (str(folder), "smollm2-135m"):
        with pytest.raises(InputError, match="and so has no revision 'v2'; leave the revision out"):
            resolve_model(argument, store, never, revision="v2")


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (LocalEntryNotFoundError("offline"), OperationError, "the hub is out of reach"),
        (httpx.ConnectError("refused"), OperationError, "the hub is out of reach"),
        (OSError("no network"), OperationError, "the hub is out of reach"),
        (
            RepositoryNotFoundError(
                "gone", response=httpx.Response(404, request=httpx.Request("GET", "http://h"))
            ),
            InputError,
            "the hub has no org/some-model",
        ),
        (
            RevisionNotFoundError("gone", response=NOT_FOUND),
            InputError,
            "org/some-model has no revision None",
        ),
    ],
)
def test_hub_failures(
    store: ModelStore,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    kind: type[Exception],
    words: str,
) -> None:
    def fail(repository: str, **options: object) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(kind, match=words):
        resolve_model("org/some-model", store, never)
