"""Options from a YAML file: `name: value` lines, with dashes or underscores, each once.

Knows files and YAML; which options there are is the reader's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from outrider.config import nearest, shorten
from outrider.errors import InputError


def read_options(file: Path, known: Iterable[str]) -> dict[str, object]:
    """The options in `file` by their names with underscores; `known` are the allowed ones.

    Raises InputError naming the file and what is wrong in it.
    """
    names = tuple(known)
    options: dict[str, object] = {}
    for written, value in _read_mapping(file).items():
        key = str(written).replace("-", "_")
        if key not in names:
            raise InputError(f"--config: {file}: unknown option {written!r}{nearest(key, names)}")
        if key in options:
            raise InputError(f"--config: {file}: {key} is given twice")
        options[key] = value
    return options


def labels(file: Path) -> Callable[[str], str]:
    """How a key of `file` is called in a refusal."""
    return lambda key: f"--config: {file}: {key}"


def _read_mapping(file: Path) -> dict[object, object]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError as error:
        raise InputError(f"--config: there is no file {file}") from error
    except OSError as error:
        raise InputError(f"--config: {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--config: {file} is not YAML: {shorten(reason, 160)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"--config: {file} must hold options as `name: value` lines")
    return content


class _Loader(yaml.SafeLoader):
    """Plain values only; a key that comes twice is refused, where YAML would take the last.

    So is a value that holds itself, which no option is.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.deep_construct = True

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)
