"""API keys: what of them is kept, how one is recognised, how one is made.

Knows names, hashes and limits; never keeps a key itself. A key that `outrider keys new` makes has
256 random bits, so a plain SHA-256 of it cannot be turned back by guessing, and costs a request
nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.config import describe_validation, shorten
from outrider.errors import InputError

_PREFIX: Final = "outrider-"
_SCHEME: Final = "sha256:"
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# What a client can put into a header, and a list of keys between commas.
_KEY: Final = re.compile(r"[!-+\--~]{1,256}")

_PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key's name, SHA-256 digest (32 bytes) and limits; None is no limit."""

    name: str
    digest: bytes = field(repr=False)
    requests_per_minute: int | None = None
    max_concurrent_requests: int | None = None


class KeyRing:
    """All keys of a gateway; empty: every request is let in.

    Raises InputError where two have one name, or are one key.
    """

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.keys = tuple(keys)
        names: set[str] = set()
        digests: dict[bytes, str] = {}
        for key in self.keys:
            if key.name in names:
                raise InputError(f"--api-key-file: {key.name!r} is the name of two keys")
            if key.digest in digests:
                raise InputError(
                    f"--api-key-file: {digests[key.digest]!r} and {key.name!r} are the same key"
                )
            names.add(key.name)
            digests[key.digest] = key.name

    def __bool__(self) -> bool:
        return bool(self.keys)

    def find(self, presented: str) -> ApiKey | None:
        """The key that a client presents; takes as long for a wrong one as for any right one."""
        digest = digest_of(presented)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


class _Entry(BaseModel):
    """One key as it is written in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=f"^{_NAME}$")]
    hash: Annotated[str, Field(pattern=f"^{_SCHEME}[0-9a-f]{{64}}$")]
    requests_per_minute: _PositiveInt | None = None
    max_concurrent_requests: _PositiveInt | None = None


def digest_of(key: str) -> bytes:
    """SHA-256 of a key, 32 bytes."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def given_keys(keys: Sequence[str], option: str) -> tuple[ApiKey, ...]:
    """Keys written out on the command line or in the environment: `key-1`, `key-2`, no limits.

    Raises InputError naming `option`, without the key.
    """
    for number, key in enumerate(keys, start=1):
        if not _KEY.fullmatch(key):
            raise InputError(
                f"{option}: key {number} of {len(keys)} is not 1 to 256 printable ASCII "
                "characters without spaces and commas"
            )
    return tuple(ApiKey(f"key-{n}", digest_of(key)) for n, key in enumerate(keys, start=1))


def read_key_file(path: Path, option: str) -> tuple[ApiKey, ...]:
    """Keys of a file: JSON lines, or a YAML list of the same objects.

    Raises InputError naming `option`, the file and the entry.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{option}: {path} cannot be read: {error}") from error
    keys = []
    for where, value in _entries(text, f"{option}: {path}"):
        try:
            entry = _Entry.model_validate(value)
        except ValidationError as error:
            raise InputError(describe_validation(error, where)) from error
        keys.append(
            ApiKey(
                entry.name,
                bytes.fromhex(entry.hash.removeprefix(_SCHEME)),
                entry.requests_per_minute,
                entry.max_concurrent_requests,
            )
        )
    if not keys:
        raise InputError(f"{option}: {path} has no keys; `outrider keys new NAME` makes one")
    return tuple(keys)


def new_key() -> str:
    """A key with 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def file_line(
    name: str,
    key: str,
    requests_per_minute: int | None = None,
    max_concurrent_requests: int | None = None,
) -> str:
    """The line of a key file that lets `key` in. Raises InputError for a name that cannot be."""
    if not re.fullmatch(_NAME, name):
        raise InputError(
            f"NAME: {shorten(repr(name))} is not 1 to 64 letters, digits, dots, dashes and "
            "underscores"
        )
    entry: dict[str, object] = {"name": name, "hash": _SCHEME + digest_of(key).hex()}
    if requests_per_minute is not None:
        entry["requests_per_minute"] = requests_per_minute
    if max_concurrent_requests is not None:
        entry["max_concurrent_requests"] = max_concurrent_requests
    return json.dumps(entry)


def _entries(text: str, where: str) -> list[tuple[str, object]]:
    """Each entry with what messages call it."""
    if text.lstrip().startswith("{"):
        return list(_lines(text, where))
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is neither JSON lines nor YAML: {_line(error)}") from error
    if content is None:
        return []
    if not isinstance(content, list):
        raise InputError(f"{where} is not a list of keys, each with name and hash")
    return [(f"{where}: entry {number}", value) for number, value in enumerate(content, start=1)]


def _lines(text: str, where: str) -> Iterable[tuple[str, object]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield f"{where}: line {number}", json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: line {number} is not JSON: {error}") from error


def _line(error: yaml.YAMLError) -> str:
    """What is wrong, without the file's content."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "malformed"
    return f"{problem} at line {mark.line + 1}" if mark is not None else str(problem)
