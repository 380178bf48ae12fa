"""What a MODEL argument means: a folder, a known name or a hub id; and whether a folder is one.

Knows which files a Hugging Face causal LM needs; does not load them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.checkpoints import ModelStore
from outrider.config import nearest
from outrider.errors import InputError, OperationError

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Model:
    """A model folder that has what a model needs, and the name it goes by."""

    folder: Path
    name: str


def resolve_model(
    argument: str,
    store: ModelStore,
    pull: Callable[[str], Path],
    option: str = "MODEL",
    revision: str | None = None,
) -> Model:
    """The model that `argument` means; a known name is pulled by `pull` if it is not there.

    `revision` is a branch, tag or commit of a hub's repository. Raises InputError where nothing is
    meant by it or the folder lacks something, OperationError where a pull or the hub fails.
    """
    path = Path(argument).expanduser()
    if revision is not None and (path.exists() or argument in store.known):
        raise InputError(
            f"{option}: {argument} is no repository of a hub, and so has no revision {revision!r}; "
            "leave the revision out"
        )
    if path.is_dir():
        check_model_folder(path, option)
        return Model(path.absolute(), path.absolute().name)
    if argument in store.known:
        folder = store.find(argument) or pull(argument)
        check_model_folder(folder, option)
        return Model(folder, argument)
    if path.exists():
        raise InputError(f"{option}: {argument} is a file; a model is a folder")
    if argument.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(argument):
        hint = nearest(argument, store.known)
        raise InputError(
            f"{option}: there is no folder {argument!r}; write a folder, a hub id (ORG/NAME) or "
            f"one of {', '.join(store.known)}{hint}"
        )
    folder = _from_hub(argument, option, revision)
    check_model_folder(folder, option)
    return Model(folder, argument)


def check_model_folder(folder: Path, option: str = "MODEL") -> None:
    """Raises InputError naming the first thing that `folder` lacks to be a causal LM."""
    config = _read_object(folder / "config.json", folder, option)
    if not isinstance(config.get("model_type"), str):
        raise InputError(f"{option}: {folder}/config.json has no model_type")
    architectures = config.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list)
        and any("CausalLM" in str(item) or "LMHead" in str(item) for item in architectures)
    ):
        raise InputError(
            f"{option}: {folder}/config.json names {architectures}, which is no causal language "
            "model (…ForCausalLM)"
        )
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise InputError(
            f"{option}: {folder} has no tokenizer (one of {', '.join(_TOKENIZER_FILES)})"
        )
    if (folder / _INDEX).exists():
        shards = _read_object(folder / _INDEX, folder, option).get("weight_map")
        if not isinstance(shards, dict):
            raise InputError(f"{option}: {folder}/{_INDEX} has no weight_map")
        missing = sorted({str(n) for n in shards.values() if not (folder / str(n)).is_file()})
        if missing:
            raise InputError(
                f"{option}: {folder} lacks {len(missing)} of its weight files, first {missing[0]}"
            )
    elif not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise InputError(f"{option}: {folder} has no weights (*.safetensors)")


def _read_object(path: Path, folder: Path, option: str) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{option}: {folder} has no {path.name}") from error
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{option}: {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{option}: {path} is not a JSON object")
    return value


def _from_hub(repository: str, option: str, revision: str | None) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=list(_HUB_FILES))
        )
    except GatedRepoError as error:
        raise InputError(
            f"{option}: {repository} is gated; accept its terms on the hub and log in first"
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(f"{option}: the hub has no {repository}, or not for you") from error
    except RevisionNotFoundError as error:
        raise InputError(f"{option}: {repository} has no revision {revision!r}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise OperationError(
            f"{option}: {repository} is neither a folder here nor in the hub's cache, and the hub "
            f"is out of reach ({type(error).__name__}); give a folder instead"
        ) from error
