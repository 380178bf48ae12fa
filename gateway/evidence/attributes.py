"""Reads OTLP attributes as the types they must have.

Knows protobuf's AnyValue and limits of size; does not know which attributes a span needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

# The largest integer that JSON's readers keep exactly; no true count comes near it.
MAX_COUNT: Final = 2**53 - 1
MAX_STRING: Final = 256
MAX_LIST: Final = 4096


class ContentError(Exception):
    """A span says something that cannot be so; `reason` is a short word for counting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Attributes:
    """Attributes of one span or event. Every reader raises ContentError on another type."""

    def __init__(self, pairs: Iterable[KeyValue]) -> None:
        self._values = {pair.key: pair.value for pair in pairs}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def string(self, name: str) -> str:
        """Empty where it is not there; cut to MAX_STRING characters."""
        value = self._values.get(name)
        if value is None:
            return ""
        return _string(name, value)[:MAX_STRING]

    def strings(self, name: str, limit: int = MAX_STRING) -> tuple[str, ...] | None:
        """None where it is not there; each cut to `limit` characters."""
        value = self._values.get(name)
        if value is None:
            return None
        return tuple(_string(name, item)[:limit] for item in _items(name, value))

    def count(self, name: str, *, required: bool = False) -> int:
        """A number from 0 to MAX_COUNT; 0 where it is not there and need not be."""
        value = self._values.get(name)
        if value is None:
            if required:
                raise ContentError("missing", f"{name} is missing")
            return 0
        return _count(name, value)

    def counts(self, name: str) -> tuple[int, ...]:
        """Empty where it is not there."""
        value = self._values.get(name)
        return () if value is None else tuple(_count(name, v) for v in _items(name, value))

    def number(self, name: str) -> float | None:
        """A finite number of 0 and above; None where it is not there."""
        value = self._values.get(name)
        if value is None:
            return None
        kind = value.WhichOneof("value")
        if kind not in ("double_value", "int_value"):
            raise ContentError("type", f"{name} is no number")
        number = float(value.double_value if kind == "double_value" else value.int_value)
        if not math.isfinite(number) or number < 0:
            raise ContentError("range", f"{name} is {number}")
        return number

    def flag(self, name: str) -> bool:
        """False where it is not there."""
        value = self._values.get(name)
        if value is None:
            return False
        if value.WhichOneof("value") != "bool_value":
            raise ContentError("type", f"{name} is neither true nor false")
        return value.bool_value


def _string(name: str, value: AnyValue) -> str:
    if value.WhichOneof("value") != "string_value":
        raise ContentError("type", f"{name} is no string")
    # DuckDB's strings hold anything but what UTF-8 cannot say; JSON shows the rest escaped.
    return value.string_value


def _count(name: str, value: AnyValue) -> int:
    if value.WhichOneof("value") != "int_value":
        raise ContentError("type", f"{name} is no integer")
    if not 0 <= value.int_value <= MAX_COUNT:
        raise ContentError("range", f"{name} is {value.int_value}")
    return value.int_value


def _items(name: str, value: AnyValue) -> Iterable[AnyValue]:
    if value.WhichOneof("value") != "array_value":
        raise ContentError("type", f"{name} is no array")
    items = value.array_value.values
    if len(items) > MAX_LIST:
        raise ContentError("size", f"{name} has {len(items)} items; {MAX_LIST} are allowed")
    return items
