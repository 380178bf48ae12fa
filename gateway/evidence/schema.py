"""The tables of an evidence file, and how records become rows.

Knows DuckDB's types and the schema's version; runs nothing. Times are nanoseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from gateway.evidence.records import ProposerShare, RequestRecord, RoundRecord
from gateway.evidence.sums import AcceptanceSums

# Raised with every change of the tables below.
SCHEMA_VERSION: Final = 1

_NUMPY: Final = {"BIGINT": "int64", "DOUBLE": "float64", "BOOLEAN": "bool"}

_T = TypeVar("_T")
ShareRow = tuple[RequestRecord, ProposerShare | None]
RoundRow = tuple[RequestRecord, int, RoundRecord]


@dataclass(frozen=True, slots=True)
class Column(Generic[_T]):
    """A column's name and type, and its value in the row of a thing."""

    name: str
    type: str
    value: Callable[[_T], Any]


@dataclass(frozen=True, slots=True)
class Table(Generic[_T]):
    """A table; `key` are the columns that tell its rows apart."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column[_T], ...]

    @property
    def create(self) -> str:
        """The statement that makes it where it is not there."""
        columns = ", ".join(f"{column.name} {column.type}" for column in self.columns)
        key = f", PRIMARY KEY ({', '.join(self.key)})" if self.key else ""
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}{key})"

    @property
    def insert(self) -> str:
        """Takes what `arrays` made, registered as `batch`."""
        values = ", ".join(
            # Numpy says NaN where there is no number.
            f"nullif({c.name}, 'NaN')" if c.type == "DOUBLE" else f"{c.name}::{c.type}"
            for c in self.columns
        )
        return f"INSERT INTO {self.name} SELECT {values} FROM batch"

    def arrays(self, things: Sequence[_T]) -> dict[str, Any]:
        """One array for each column: DuckDB reads these ten times as fast as lists."""
        import numpy

        result = {}
        for column in self.columns:
            values = [column.value(thing) for thing in things]
            kind = _NUMPY.get(column.type)
            if kind is not None:
                result[column.name] = numpy.array(values, dtype=kind)
                continue
            # Lists of one length would become a matrix if numpy chose.
            array = numpy.empty(len(values), dtype=object)
            array[:] = values
            result[column.name] = array
        return result

    @property
    def names(self) -> str:
        return ", ".join(column.name for column in self.columns)


def _sums(sums: Callable[[_T], AcceptanceSums]) -> tuple[Column[_T], ...]:
    return (
        Column("num_spec_steps", "BIGINT", lambda t: sums(t).num_spec_steps),
        Column("num_draft_tokens", "BIGINT", lambda t: sums(t).num_draft_tokens),
        Column("num_accepted_draft_tokens", "BIGINT", lambda t: sums(t).num_accepted_draft_tokens),
        Column("acceptance_histogram", "BIGINT[]", lambda t: list(sums(t).histogram)),
        Column("accepted_per_position", "BIGINT[]", lambda t: list(sums(t).accepted_per_position)),
        Column("proposed_per_position", "BIGINT[]", lambda t: list(sums(t).proposed_per_position)),
    )


def _request(record: Callable[[_T], RequestRecord]) -> tuple[Column[_T], ...]:
    """What tells requests apart, in every table that is summed or pruned by itself."""
    return (
        Column("trace_id", "VARCHAR", lambda t: record(t).trace_id),
        Column("span_id", "VARCHAR", lambda t: record(t).span_id),
        Column("ended_ns", "BIGINT", lambda t: record(t).ended_ns),
        Column("model", "VARCHAR", lambda t: record(t).model),
        Column("verifier", "VARCHAR", lambda t: record(t).verifier),
        Column("workload", "VARCHAR", lambda t: record(t).workload),
        Column("temperature_bucket", "VARCHAR", lambda t: record(t).temperature_bucket),
        Column("completion_tokens", "BIGINT", lambda t: record(t).completion_tokens),
    )


REQUESTS: Final[Table[RequestRecord]] = Table(
    "requests",
    ("trace_id", "span_id"),
    (
        *_request(lambda r: r),
        Column("request_id", "VARCHAR", lambda r: r.request_id),
        Column("started_ns", "BIGINT", lambda r: r.started_ns),
        Column("temperature", "DOUBLE", lambda r: r.temperature),
        Column("rule", "VARCHAR", lambda r: r.rule),
        Column("num_speculative_tokens", "BIGINT", lambda r: r.num_speculative_tokens),
        Column("prompt_tokens", "BIGINT", lambda r: r.prompt_tokens),
        Column("finish_reason", "VARCHAR", lambda r: r.finish_reason),
        Column("error", "VARCHAR", lambda r: r.error),
        Column("num_rounds", "BIGINT", lambda r: r.num_rounds),
        *_sums(lambda r: r.sums),
        Column("draft_wait_ns", "BIGINT", lambda r: r.draft_wait_ns),
        Column("verify_ns", "BIGINT", lambda r: r.verify_ns),
        Column("queue_ns", "BIGINT", lambda r: r.queue_ns),
        Column("first_token_ns", "BIGINT", lambda r: r.first_token_ns),
        Column("lookahead_hits", "BIGINT", lambda r: r.lookahead_hits),
        Column("off_reasons", "VARCHAR[]", lambda r: [reason for reason, _ in r.off]),
        Column("off_rounds", "BIGINT[]", lambda r: [count for _, count in r.off]),
        Column("sampling_ratio", "DOUBLE", lambda r: r.sampling_ratio),
    ),
)

_NO_SUMS: Final = AcceptanceSums()

# One row for each proposer of a request, and one without a proposer where none drafted.
SHARES: Final[Table[ShareRow]] = Table(
    "shares",
    (),
    (
        *_request(lambda row: row[0]),
        Column("proposer", "VARCHAR", lambda row: row[1].name if row[1] else None),
        Column("method", "VARCHAR", lambda row: row[1].method if row[1] else None),
        *_sums(lambda row: row[1].sums if row[1] else _NO_SUMS),
        Column("lookahead_hits", "BIGINT", lambda row: row[1].lookahead_hits if row[1] else 0),
    ),
)

ROUNDS: Final[Table[RoundRow]] = Table(
    "rounds",
    (),
    (
        Column("trace_id", "VARCHAR", lambda row: row[0].trace_id),
        Column("span_id", "VARCHAR", lambda row: row[0].span_id),
        Column("ended_ns", "BIGINT", lambda row: row[0].ended_ns),
        Column("round", "BIGINT", lambda row: row[1]),
        Column("base", "BIGINT", lambda row: row[2].base),
        Column("offered", "BIGINT", lambda row: row[2].offered),
        Column("verified", "BIGINT", lambda row: row[2].verified),
        Column("accepted", "BIGINT", lambda row: row[2].accepted),
        Column("emitted", "BIGINT", lambda row: row[2].emitted),
        Column("proposer", "VARCHAR", lambda row: row[2].proposer),
        Column("off_reason", "VARCHAR", lambda row: row[2].off_reason),
        Column("draft_wait_ns", "BIGINT", lambda row: row[2].draft_wait_ns),
        Column("verify_ns", "BIGINT", lambda row: row[2].verify_ns),
        Column("lookahead_hit", "BOOLEAN", lambda row: row[2].lookahead_hit),
        Column("draft_texts", "VARCHAR[]", lambda row: _or_none(row[2].draft_texts)),
        Column("emitted_texts", "VARCHAR[]", lambda row: _or_none(row[2].emitted_texts)),
    ),
)

TABLES: Final = (REQUESTS, SHARES, ROUNDS)


def share_rows(records: Iterable[RequestRecord]) -> list[ShareRow]:
    return [(r, share) for r in records for share in (r.proposers or (None,))]


def round_rows(records: Iterable[RequestRecord]) -> list[RoundRow]:
    return [(r, i, round_) for r in records for i, round_ in enumerate(r.rounds)]


def _or_none(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)
