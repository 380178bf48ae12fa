"""How a request's field is refused, in one voice; knows no field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verifier_service.request_error import RequestError


def refused(name: str, value: object, allowed: str, *, field: str = "") -> RequestError:
    """The error that names a field, its value and what is allowed; `field` is its parameter."""
    return RequestError(f"{name} {value} is not allowed: {allowed}", field=field or name)


def shown(value: float) -> str:
    """A float32 as its sender wrote it: 2.1, not 2.0999999046325684."""
    return f"{value:.7g}"


def optional(message: Any, name: str, default: Any) -> Any:
    """A protobuf field's value, or `default` where it is unset."""
    return getattr(message, name) if message.HasField(name) else default


def check_token_ids(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Raises RequestError naming the first id outside the vocabulary."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        index, bad = next((i, t) for i, t in enumerate(token_ids) if not 0 <= t < vocab_size)
        raise RequestError(
            f"{field}[{index}] {bad} is not a token id: ids are from 0 to {vocab_size - 1}",
            field=field,
        )
