"""What is asked of the evidence: which requests, when, grouped by what.

Knows the names of dimensions and how times are written; does not know where answers come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from gateway.evidence.labels import OTHER
from gateway.evidence.records import HOTTER, TEMPERATURE_BUCKETS, UNKNOWN
from outrider.durations import duration_s, parse_duration
from outrider.errors import InputError

_SECOND_NS: Final = 10**9
_LATEST_S: Final = 253_402_300_799  # the end of the year 9999
DEFAULT_INTERVAL_NS: Final = 60 * _SECOND_NS
MAX_NAME: Final = 256


class Dimension(Enum):
    """What acceptance can be grouped by; all but the last two can be filtered by."""

    PROPOSER = "proposer"
    METHOD = "method"
    MODEL = "model"
    VERIFIER = "verifier"
    WORKLOAD = "workload"
    TEMPERATURE = "temperature"
    POSITION = "position"
    TIME = "time"


FILTERS: Final = tuple(d.value for d in Dimension if d not in (Dimension.POSITION, Dimension.TIME))
_RANGE: Final = ("since", "until")
_BUCKETS: Final = (*(name for _, name in TEMPERATURE_BUCKETS), HOTTER, UNKNOWN, OTHER)


@dataclass(frozen=True, slots=True)
class Selection:
    """Requests that ended from `since_ns` to before `until_ns` (None: no bound).

    `equals` holds values by the name of their dimension. With a proposer or a method, only its
    share of a request's drafts is meant.
    """

    since_ns: int | None = None
    until_ns: int | None = None
    equals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AcceptanceQuery:
    """A selection and what its sums are grouped by; `interval_ns` is how wide time's groups are."""

    selection: Selection = field(default_factory=Selection)
    group_by: tuple[Dimension, ...] = ()
    interval_ns: int = DEFAULT_INTERVAL_NS

    @property
    def by_position(self) -> bool:
        return Dimension.POSITION in self.group_by

    @property
    def keys(self) -> tuple[Dimension, ...]:
        """The dimensions that tell requests apart: positions are parts of them."""
        return tuple(d for d in self.group_by if d is not Dimension.POSITION)


def parse_acceptance(parameters: Sequence[tuple[str, str]], now_s: float) -> AcceptanceQuery:
    """From a query string's pairs. Raises InputError naming the parameter as its first word."""
    _check_names(parameters, (*FILTERS, *_RANGE, "group_by", "interval"))
    group_by = _group_by([value for name, value in parameters if name == "group_by"])
    interval = _single(parameters, "interval")
    if interval is not None and Dimension.TIME not in group_by:
        raise InputError("interval: is the width of time's groups; add time to group_by")
    return AcceptanceQuery(
        selection=_selection(parameters, now_s),
        group_by=group_by,
        interval_ns=DEFAULT_INTERVAL_NS if interval is None else _interval_ns(interval),
    )


def parse_selection(
    parameters: Sequence[tuple[str, str]], now_s: float, others: Sequence[str] = ()
) -> Selection:
    """The same without groups; `others` are allowed names that the caller reads."""
    _check_names(parameters, (*FILTERS, *_RANGE, *others))
    return _selection(parameters, now_s)


def parse_time(value: str, now_s: float, name: str) -> int:
    """Nanoseconds since 1970 of unix seconds, ISO 8601 (UTC where no zone is), or `15m` ago.

    Raises InputError.
    """
    ago = duration_s(value)
    if ago is not None:
        seconds = now_s - ago
    elif re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", value):
        whole, _, fraction = value.partition(".")
        # Not as a float, which has no room for nanoseconds.
        if int(whole) > _LATEST_S:
            raise InputError(f"{name}: {value!r} is behind the year 9999; write unix seconds")
        return int(whole) * _SECOND_NS + int(fraction.ljust(9, "0") or 0)
    else:
        try:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = moment.timestamp()
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{name}: {value[:64]!r} is no time; write unix seconds, ISO 8601 "
                "(2026-01-31T12:00:00Z) or how long ago (15m, 2h, 7d)"
            ) from error
    return max(0, round(seconds * 1e6) * 1000)


def _interval_ns(value: str) -> int:
    return round(parse_duration(value, "interval", "1s", "366d") * _SECOND_NS)


def _selection(parameters: Sequence[tuple[str, str]], now_s: float) -> Selection:
    since, until = _single(parameters, "since"), _single(parameters, "until")
    since_ns = None if since is None else parse_time(since, now_s, "since")
    until_ns = None if until is None else parse_time(until, now_s, "until")
    if since_ns is not None and until_ns is not None and since_ns >= until_ns:
        raise InputError(f"since: {since!r} is not before until, {until!r}")
    equals: dict[str, str] = {}
    for name in FILTERS:
        value = _single(parameters, name)
        if value is None:
            continue
        if len(value) > MAX_NAME:
            raise InputError(f"{name}: has {len(value)} characters; {MAX_NAME} are allowed")
        if name == Dimension.TEMPERATURE.value and value not in _BUCKETS:
            raise InputError(
                f"{name}: {value[:64]!r} is no bucket; write one of {', '.join(_BUCKETS)}"
            )
        equals[name] = value
    return Selection(since_ns, until_ns, equals)


def _group_by(values: Sequence[str]) -> tuple[Dimension, ...]:
    allowed = [dimension.value for dimension in Dimension]
    result: list[Dimension] = []
    for name in filter(None, ",".join(values).split(",")):
        if name.strip() not in allowed:
            raise InputError(f"group_by: {name[:64]!r} is not one of {', '.join(allowed)}")
        dimension = Dimension(name.strip())
        if dimension not in result:
            result.append(dimension)
    return tuple(result)


def _single(parameters: Sequence[tuple[str, str]], name: str) -> str | None:
    """An empty value is the same as none: forms send fields that nobody filled in."""
    values = [value for key, value in parameters if key == name and value]
    if len(values) > 1:
        raise InputError(f"{name}: is given {len(values)} times; give it once")
    return values[0] if values else None


def _check_names(parameters: Sequence[tuple[str, str]], allowed: Sequence[str]) -> None:
    for name, _ in parameters:
        if name not in allowed:
            raise InputError(f"{name[:64]}: is not known here; known: {', '.join(allowed)}")
