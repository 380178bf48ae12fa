"""Writes evidence as Parquet or CSV into a temporary file, to be sent and forgotten.

Knows DuckDB's COPY; the tables are schema.py's and the conditions queries.py's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from gateway.evidence.filters import Selection
from gateway.evidence.queries import where_literal
from gateway.evidence.records import RequestRecord
from gateway.evidence.schema import (
    REQUESTS,
    ROUNDS,
    SHARES,
    TABLES,
    round_rows,
    share_rows,
)

if TYPE_CHECKING:
    import duckdb


class ExportFailedError(Exception):
    """The temporary file could not be written; the text says why."""


class Format(Enum):
    """Of an exported file."""

    PARQUET = "parquet"
    CSV = "csv"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES[self]


class Rows(Enum):
    """What a row of it is: a request, a proposer's share of one, or a round."""

    REQUESTS = "requests"
    PROPOSERS = "proposers"
    ROUNDS = "rounds"


_MEDIA_TYPES: Final = {
    Format.PARQUET: "application/vnd.apache.parquet",
    Format.CSV: "text/csv; charset=utf-8",
}
_OPTIONS: Final = {
    Format.PARQUET: "FORMAT parquet, COMPRESSION zstd",
    Format.CSV: "FORMAT csv, HEADER",
}
_TABLES: Final[Mapping[Rows, str]] = {
    Rows.REQUESTS: REQUESTS.name,
    Rows.PROPOSERS: SHARES.name,
    Rows.ROUNDS: ROUNDS.name,
}


def export(
    connection: duckdb.DuckDBPyConnection, rows: Rows, format_: Format, selection: Selection
) -> BinaryIO:
    """An open file without a name, which is gone when it is closed.

    Raises ExportFailedError where the temporary folder takes no such file, or duckdb.Error.
    """
    import duckdb

    table = _TABLES[rows]
    condition = where_literal(selection, table)
    try:
        with tempfile.TemporaryDirectory(prefix="outrider-export-") as folder:
            path = Path(folder) / f"export.{format_.value}"
            target = str(path).replace("'", "''")
            connection.execute(
                f"COPY (SELECT * FROM {table} WHERE {condition} ORDER BY ended_ns, span_id) "
                f"TO '{target}' ({_OPTIONS[format_]})"
            )
            return cast("BinaryIO", path.open("rb"))
    except (OSError, duckdb.IOException) as error:
        raise ExportFailedError(" ".join(str(error).split())) from error


def export_records(
    records: Iterable[RequestRecord], rows: Rows, format_: Format, selection: Selection
) -> BinaryIO:
    """The same of records that are in no file. Blocks."""
    import duckdb

    from gateway.evidence.file import insert

    kept = list(records)
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        for table in TABLES:
            connection.execute(table.create)
        insert(connection, REQUESTS, kept)
        insert(connection, SHARES, share_rows(kept))
        insert(connection, ROUNDS, round_rows(kept))
        return export(connection, rows, format_, selection)
