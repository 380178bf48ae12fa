"""Results on disk: where they go, and how they get there.

Knows files; does not know what a result says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from outrider.bench.arms import Load
from outrider.errors import InputError, OperationError

# Options whose values may be secret and are not kept with a result.
_SECRET: Final = ("--header",)


def writable_folder(folder: Path, option: str) -> Path:
    """`folder`, made if it is not there. Raises InputError where nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{option}: the folder {folder} cannot be made: {reason}") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option}: nothing can be written to the folder {folder}")
    return folder


def writable_file(path: Path, option: str) -> Path:
    """`path`, its folder made if it is not there; asked before a measurement, which would be lost.

    Raises InputError where it cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{option}: {path} is a folder; name a file")
    writable_folder(path.absolute().parent, option)
    if path.exists() and not os.access(path, os.W_OK):
        raise InputError(f"{option}: the file {path} cannot be written")
    return path


def result_name(label: str, load: Load, model: str, date: str) -> str:
    """A file's name as `vllm bench serve` forms it."""
    clients, ramp = load.max_concurrency, load.ramp
    concurrency = "" if clients is None else f"-concurrency{clients}"
    rate = f"{load.request_rate:g}qps"
    if ramp is not None:
        rate = f"ramp-up-{ramp.strategy.value}-{ramp.start:g}qps-{ramp.end:g}qps"
    label = re.sub(r"[/\\\0]", "_", label)
    stamp = re.sub(r"[^0-9TZ]", "", date)
    base = re.sub(r"[^\w.-]+", "_", model.rpartition("/")[2])
    return f"{label}-{rate}{concurrency}-{base}-{stamp}.json"


def write_json(path: Path, document: Mapping[str, Any], *, append: bool = False) -> None:
    """Write `document`; `append` adds it to the file as one line. Raises OperationError."""
    indent = None if append else 1
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
    write_text(path, text, append=append)


def write_text(path: Path, text: str, *, append: bool = False) -> None:
    """Write `text` to a file, or to its end. Raises OperationError."""
    try:
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OperationError(f"{path} cannot be written: {reason}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A result that was saved. Raises InputError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"RESULT: there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"RESULT: {path} is no saved result: {error}") from error
    if not isinstance(document, dict) or "kind" not in document or "servers" not in document:
        raise InputError(f"RESULT: {path} is no result of outrider bench")
    return document


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line as it may be kept: values of `--header` are left out."""
    kept: list[str] = []
    hide = False
    for argument in arguments:
        option = argument.partition("=")[0]
        if hide:
            kept.append("…")
        elif option in _SECRET and "=" in argument:
            kept.append(f"{option}=…")
        else:
            kept.append(argument)
        hide = not hide and argument in _SECRET
    return kept
