"""An evidence file: opening, writing, pruning. Every call is made on the one thread that owns it.

Knows DuckDB and its failures; does not know threads or what is asked of the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb

from gateway.evidence.records import RequestRecord
from gateway.evidence.schema import (
    REQUESTS,
    ROUNDS,
    SCHEMA_VERSION,
    SHARES,
    TABLES,
    Table,
    round_rows,
    share_rows,
)

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Reads must not take cores or memory from a verifier on the same machine; nothing is downloaded.
_CONFIG: Final[dict[str, Any]] = {
    "threads": 1,
    "memory_limit": "512MB",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Columns of objects are read by what is in all their rows, not in some.
    "pandas_analyze_sample": 2**31,
    # Small ones, so that a small file is small and room is given back.
    "default_block_size": 65_536,
}
# A file that is too large is cut to this share of what is allowed.
_SHRINK_TO: Final = 0.8
_LOCKED_BY: Final = re.compile(r"PID (\d+)")


class FileUnusableError(Exception):
    """The file cannot be used now; the text says why and what to do, in one sentence."""


class EvidenceFile:
    """An open file at `path`, made where there is none. Raises FileUnusableError."""

    def __init__(self, path: Path, max_bytes: int, max_age_s: float) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._leftover = path.with_name(path.name + ".compact")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_leftovers()
            self.connection = self._connect()
        except (OSError, duckdb.Error) as error:
            raise FileUnusableError(why_unusable(path, error)) from error
        try:
            self._prepare()
            self._protect()
        except (OSError, duckdb.Error) as error:
            self.close()
            raise FileUnusableError(why_unusable(path, error)) from error
        except FileUnusableError:
            self.close()
            raise

    def write(self, records: Sequence[RequestRecord]) -> int:
        """Store all in one transaction; how many were not stored before. Raises duckdb.Error."""
        by_key = {record.key: record for record in records}
        try:
            with self._transaction():
                # What was stored before is not stored again, and neither are its shares and rounds.
                once = " ON CONFLICT DO NOTHING RETURNING trace_id, span_id"
                stored = insert(self.connection, REQUESTS, list(by_key.values()), once)
                new = [by_key[row] for row in stored]
                insert(self.connection, SHARES, share_rows(new))
                insert(self.connection, ROUNDS, round_rows(new))
        finally:
            # Half a batch may be in the log of a disk that is full.
            self._protect()
        return len(new)

    def prune(self, now_s: float) -> int:
        """Forget what is too old, and the oldest where the file is too large; how many requests.

        Raises duckdb.Error, OSError or FileUnusableError; the file is then to be closed.
        """
        before = self._num_requests()
        self._forget_before(round((now_s - self._max_age_s) * 1e9))
        if self.size > self._max_bytes:
            self.connection.execute("CHECKPOINT")
        if self.size > self._max_bytes:
            # Most of it may be room that earlier rows left.
            self._compact()
        for _ in range(8):
            if self.size <= self._max_bytes or not self._num_requests():
                break
            self._forget_oldest(1 - _SHRINK_TO * self._max_bytes / self.size)
            self._compact()
        return before - self._num_requests()

    @property
    def size(self) -> int:
        """Bytes of the file and of its log."""
        return sum(p.stat().st_size for p in self._files if p.exists())

    @property
    def _files(self) -> tuple[Path, Path]:
        """The file and its log."""
        return self.path, self.path.with_name(self.path.name + ".wal")

    def close(self) -> None:
        """Give the file free. What was written is in it, whether this fails or not."""
        try:
            self.connection.close()
        except duckdb.Error as error:
            logger.warning("evidence file %s did not close well: %s", self.path, error)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect(str(self.path), config=_CONFIG)
        # The log is a part of the size that is bounded.
        threshold = max(1, min(16, self._max_bytes // (8 * 2**20)))
        connection.execute(f"SET checkpoint_threshold = '{threshold}MB'")
        return connection

    def _prepare(self) -> None:
        tables = {row[0] for row in self.connection.execute("SHOW TABLES").fetchall()}
        if tables and "evidence" not in tables:
            raise FileUnusableError(
                f"evidence file {self.path} is a database of something else; name another file"
            )
        with self._transaction():
            if not tables:
                self.connection.execute("CREATE TABLE evidence (schema_version BIGINT)")
                self.connection.execute("INSERT INTO evidence VALUES (?)", [SCHEMA_VERSION])
                for table in TABLES:
                    self.connection.execute(table.create)
            rows = self.connection.execute("SELECT schema_version FROM evidence").fetchall()
            if rows != [(SCHEMA_VERSION,)]:
                found = ", ".join(str(row[0]) for row in rows) or "none"
                raise FileUnusableError(
                    f"evidence file {self.path} has schema version {found}, and this Outrider "
                    f"writes {SCHEMA_VERSION}; name another file or move this one away"
                )

    def _forget_before(self, moment_ns: int) -> None:
        with self._transaction():
            for table in (ROUNDS, SHARES, REQUESTS):
                self.connection.execute(f"DELETE FROM {table.name} WHERE ended_ns < ?", [moment_ns])

    def _forget_oldest(self, share: float) -> None:
        share = min(1.0, max(0.1, share))
        (moment,) = self.connection.execute(
            "SELECT quantile_disc(ended_ns, ?) FROM requests", [share]
        ).fetchall()[0]
        self._forget_before(moment + 1)

    def _num_requests(self) -> int:
        count: int = self.connection.execute("SELECT count(*) FROM requests").fetchall()[0][0]
        return count

    def _compact(self) -> None:
        """Write what is left into a new file and put it in this one's place, in one step.

        DuckDB gives room back to its own file and seldom to the disk.
        """
        self._remove_leftovers()
        source = self.connection.execute("SELECT current_database()").fetchall()[0][0]
        target = str(self._leftover).replace("'", "''")
        self.connection.execute(f"ATTACH '{target}' AS compact")
        self.connection.execute(f'COPY FROM DATABASE "{source}" TO compact')
        self.connection.execute("DETACH compact")
        # Closing writes the log into the file; a log of the old file must not meet the new one.
        self.connection.execute("CHECKPOINT")
        self.connection.close()
        os.replace(self._leftover, self.path)
        self.connection = self._connect()
        self._protect()

    def _protect(self) -> None:
        """Texts may be in it, where the verifier traces content: only its owner may read them."""
        for file in self._files:
            if file.exists() and file.stat().st_mode & 0o077:
                file.chmod(0o600)

    def _remove_leftovers(self) -> None:
        for suffix in ("", ".wal"):
            self._leftover.with_name(self._leftover.name + suffix).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        self.connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            # A failure that ended the transaction by itself leaves nothing to roll back.
            with contextlib.suppress(duckdb.Error):
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")


def insert(
    connection: duckdb.DuckDBPyConnection, table: Table[_T], rows: Sequence[_T], rest: str = ""
) -> list[Any]:
    """Insert `rows`; what the statement with `rest` behind it returns. Raises duckdb.Error."""
    if not rows:
        return []
    connection.register("batch", table.arrays(rows))
    try:
        return connection.execute(table.insert + rest).fetchall()
    finally:
        connection.unregister("batch")


def open_to_read(path: Path) -> duckdb.DuckDBPyConnection:
    """A file that no gateway has open, to be asked. Raises FileUnusableError."""
    if not path.is_file():
        raise FileUnusableError(f"evidence file {path} is not there")
    try:
        connection = duckdb.connect(str(path), read_only=True, config=_CONFIG)
        tables = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}
        if not {table.name for table in TABLES} <= tables:
            raise FileUnusableError(f"{path} is a DuckDB file of something else")
        return connection
    except duckdb.Error as error:
        raise FileUnusableError(why_unusable(path, error)) from error


def why_unusable(path: Path, error: Exception) -> str:
    """One sentence of what is wrong with the file, for people."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    what = f"evidence file {path}"
    locked = _LOCKED_BY.search(text)
    if "Could not set lock" in text:
        holder = f"process {locked[1]}" if locked else "another process"
        return f"{what} is in use by {holder}; stop it or name another file"
    if "No space left" in text or "out of disk space" in text.lower():
        return f"{what} cannot grow: the disk is full"
    if "not a valid DuckDB" in text or "orrupt" in text or "checksum" in text:
        return f"{what} is damaged or no DuckDB file; move it away or name another one ({text})"
    if "Permission denied" in text or "Read-only" in text or "read-only" in text:
        return f"{what} cannot be written: {text}"
    return f"{what} cannot be used: {text}"
