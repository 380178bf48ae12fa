"""Single fields of a traffic line: what is allowed, and the error that names line and field.

Knows values; does not know which format a line has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from outrider.config import shorten
from outrider.errors import InputError

LARGEST_ID = 2**31 - 1
FINISH_REASONS = ("stop", "length", "abort", "tool_calls", "function_call", "content_filter")

Ids = tuple[int, ...]


class BadLineError(InputError):
    """A line that cannot be used; the message names line, field and what is allowed."""


def token_ids(
    where: str,
    field: str,
    value: object,
    allowed: str = "a list of token ids",
    *,
    empty: bool = False,
) -> Ids:
    """A list of ids; an `empty` one only where that has a meaning. Raises BadLineError."""
    valid = isinstance(value, list) and all(
        isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= LARGEST_ID for i in value
    )
    if not isinstance(value, list) or not valid or not (value or empty):
        raise BadLineError(
            f"{where}: {field}: {shown(value)}: must be {allowed}"
            f"{'' if empty else ', at least one'} (ids are 0 to {LARGEST_ID})"
        )
    return tuple(value)


def text_of(where: str, field: str, value: object) -> str:
    """A string. Raises BadLineError."""
    if not isinstance(value, str):
        raise BadLineError(f"{where}: {field}: {shown(value)}: must be a string")
    return value


def finish_reason(where: str, field: str, value: object) -> str:
    """Why an answer ended, empty where nothing is said. Raises BadLineError."""
    if value is None:
        return ""
    if value not in FINISH_REASONS:
        raise BadLineError(
            f"{where}: {field}: {shown(value)}: must be one of {', '.join(FINISH_REASONS)}"
        )
    return str(value)


def cached_tokens(where: str, field: str, value: Mapping[str, object]) -> int:
    """How much of a prompt came from the cache; 0 where nothing is said. Raises BadLineError."""
    count = value.get(field)
    if count is None:
        return 0
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise BadLineError(f"{where}: {field}: {shown(count)}: must be a number of tokens")
    return count


def max_tokens(where: str, value: Mapping[str, object]) -> int | None:
    """A request's limit by either of its names. Raises BadLineError."""
    for field in ("max_completion_tokens", "max_tokens"):
        limit = value.get(field)
        if limit is None:
            continue
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LARGEST_ID:
            raise BadLineError(f"{where}: {field}: {shown(limit)}: must be a positive integer")
        return limit
    return None


def salt_of(where: str, value: Mapping[str, object]) -> str:
    """What separates a request's drafts from others': tenant and salt. Raises BadLineError."""
    parts = []
    for field in ("tenant", "cache_salt"):
        part = value.get(field)
        if part is not None and not isinstance(part, str):
            raise BadLineError(f"{where}: {field}: {shown(part)}: must be a string")
        parts.append(part or "")
    # No tenant can spell another's salt.
    return "\0".join(parts) if any(parts) else ""


def shown(value: object) -> str:
    """A value as a message shows it."""
    return shorten(json.dumps(value, ensure_ascii=False), 60)
