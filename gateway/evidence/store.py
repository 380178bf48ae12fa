"""Keeps records in a file, on a thread of its own, and answers questions there.

Knows batches, order and what to do when the file fails: tell it once, keep what fits, try again.
Does not know SQL.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.evidence.records import RequestRecord
from outrider.backoff import Backoff

if TYPE_CHECKING:
    import duckdb

    from gateway.evidence.file import EvidenceFile

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

BATCH_RECORDS: Final = 500
BATCH_S: Final = 1.0
# What waits while the file cannot be written; more is dropped and counted.
MAX_WAITING: Final = 20_000
MAX_WAITING_ROUNDS: Final = 400_000
MAX_WAITING_BYTES: Final = 256 * 1024 * 1024
_PRUNE_S: Final = 60.0
_PRUNE_RECORDS: Final = 5_000
# The file is looked at again once what came in is this share of what is allowed.
_PRUNE_SHARE: Final = 0.1
_STOP_S: Final = 10.0
_INTERRUPT_S: Final = 0.05


class StoreUnavailableError(Exception):
    """There is no file to ask now; the text says why."""


class EvidenceStore:
    """A file at `path` of about `max_bytes` at most; requests are forgotten after `max_age_s`.

    `on_dropped(reason, count)` and `on_stored(count)` are called on the store's thread. `problem`
    is empty while the file works.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_age_s: float,
        on_stored: Callable[[int], None],
        on_dropped: Callable[[str, int], None],
        batch_s: float = BATCH_S,
    ) -> None:
        self.path = path
        self.problem = ""
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._on_stored = on_stored
        self._on_dropped = on_dropped
        self._batch_s = batch_s
        self._changed = threading.Condition()
        self._waiting: deque[RequestRecord] = deque()
        self._waiting_rounds = 0
        self._waiting_bytes = 0
        self._oldest_at = 0.0
        self._jobs: deque[_Job] = deque()
        self._running: _Job | None = None
        self._stopping = False
        self._file: EvidenceFile | None = None
        self._backoff = Backoff(1.0, 60.0)
        self._retry_at = 0.0
        self._prune_at = 0.0
        self._written = 0
        self._written_bytes = 0
        self._thread = threading.Thread(target=self._run, name="evidence-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, record: RequestRecord) -> None:
        """Store `record` with the next batch. Never waits and never raises."""
        with self._changed:
            full = (
                len(self._waiting) >= MAX_WAITING
                or self._waiting_rounds + len(record.rounds) > MAX_WAITING_ROUNDS
                or self._waiting_bytes + record.size > MAX_WAITING_BYTES
            )
            if not full:
                if not self._waiting:
                    self._oldest_at = time.monotonic()
                self._waiting.append(record)
                self._count_waiting([record], 1)
                if len(self._waiting) in (1, BATCH_RECORDS):
                    self._changed.notify()
        if full:
            self._on_dropped("store_full", 1)

    async def ask(
        self, question: Callable[[duckdb.DuckDBPyConnection], _T], timeout_s: float
    ) -> _T:
        """`question`'s answer, behind everything that was put before.

        Raises StoreUnavailableError, TimeoutError, or what `question` raises.
        """
        job = _Job(question)
        with self._changed:
            if self._stopping:
                raise StoreUnavailableError("the gateway stops")
            self._jobs.append(job)
            self._changed.notify()
        try:
            answer: _T = await asyncio.wait_for(asyncio.wrap_future(job.future), timeout_s)
        except (TimeoutError, asyncio.CancelledError):
            self._interrupt(job)
            raise
        return answer

    def stop(self) -> None:
        """Write what waits and close the file; waits at most 10 s."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            logger.warning("evidence file %s is still busy; its last batch is lost", self.path)

    def _interrupt(self, job: _Job) -> None:
        """Stop `job` if it runs: again and again, as one between two statements is not heard."""
        with self._changed:
            if self._running is not job or self._file is None:
                return
            self._file.connection.interrupt()
        asyncio.get_running_loop().call_later(_INTERRUPT_S, self._interrupt, job)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._due, self._patience())
                stopping = self._stopping
                jobs = list(self._jobs)
                self._jobs.clear()
            self._work(jobs, stopping)
            if stopping:
                break
        if self._file is not None:
            self._file.close()

    def _work(self, jobs: list[_Job], stopping: bool) -> None:
        try:
            if self._opened(stopping):
                self._write()
                if not stopping:
                    self._prune()
        except Exception as error:
            self._fail(error)
        for job in jobs:
            if self._file is None:
                job.refuse(StoreUnavailableError(self.problem))
                continue
            with self._changed:
                self._running = job
            job.run(self._file.connection)
            with self._changed:
                self._running = None

    def _due(self) -> bool:
        return bool(self._stopping or self._jobs) or self._batch_is_due()

    def _batch_is_due(self) -> bool:
        now = time.monotonic()
        if now < self._retry_at:
            return False
        return len(self._waiting) >= BATCH_RECORDS or (
            bool(self._waiting) and now >= self._oldest_at + self._batch_s
        )

    def _patience(self) -> float:
        """Seconds until something may be due by itself. Called with the lock held."""
        now = time.monotonic()
        if self._file is None:
            return max(0.0, self._retry_at - now)
        batch = self._oldest_at + self._batch_s if self._waiting else now + _PRUNE_S
        return max(0.0, min(batch, self._prune_at) - now)

    def _opened(self, last_chance: bool) -> bool:
        if self._file is not None:
            return True
        if time.monotonic() < self._retry_at and not last_chance:
            return False
        from gateway.evidence.file import EvidenceFile

        self._file = EvidenceFile(self.path, self._max_bytes, self._max_age_s)
        self._retry_at = 0.0
        return True

    def _works(self) -> None:
        """What waited is written: a file on a full disk can still be opened."""
        self._backoff.reset()
        if self.problem:
            logger.info("evidence file %s works again", self.path)
        self.problem = ""

    def _write(self) -> None:
        import duckdb

        assert self._file is not None
        while True:
            with self._changed:
                batch = [
                    self._waiting.popleft() for _ in range(min(BATCH_RECORDS, len(self._waiting)))
                ]
                self._count_waiting(batch, -1)
                self._oldest_at = time.monotonic()
            if not batch:
                self._works()
                return
            try:
                new = self._file.write(batch)
            except (duckdb.OperationalError, duckdb.InternalError, OSError):
                self._put_back(batch)
                raise
            except Exception as error:
                if type(error) is duckdb.Error:
                    # What DuckDB calls by no other name: a damaged file.
                    self._put_back(batch)
                    raise
                # Not the file's fault: this batch would fail for ever.
                logger.exception("evidence of %d requests cannot be stored", len(batch))
                self._on_dropped("unstorable", len(batch))
                continue
            self._works()
            self._written += new
            self._written_bytes += sum(record.size for record in batch)
            self._on_stored(new)

    def _put_back(self, batch: list[RequestRecord]) -> None:
        with self._changed:
            self._waiting.extendleft(reversed(batch))
            self._count_waiting(batch, 1)

    def _count_waiting(self, records: Sequence[RequestRecord], sign: int) -> None:
        self._waiting_rounds += sign * sum(len(record.rounds) for record in records)
        self._waiting_bytes += sign * sum(record.size for record in records)

    def _prune(self) -> None:
        assert self._file is not None
        now = time.monotonic()
        much = self._written_bytes > _PRUNE_SHARE * self._max_bytes
        if now < self._prune_at and self._written < _PRUNE_RECORDS and not much:
            return
        self._prune_at = now + _PRUNE_S
        self._written = self._written_bytes = 0
        forgotten = self._file.prune(time.time())
        if forgotten:
            logger.info("evidence file %s: %d old requests forgotten", self.path, forgotten)

    def _fail(self, error: Exception) -> None:
        from gateway.evidence.file import FileUnusableError, why_unusable

        known = isinstance(error, FileUnusableError)
        text = str(error) if known else why_unusable(self.path, error)
        if text != self.problem:
            logger.error("%s; evidence is kept in memory only, and requests go on", text)
        self.problem = text
        if self._file is not None:
            self._file.close()
            self._file = None
        self._retry_at = time.monotonic() + self._backoff.next_delay()


class _Job:
    """A question and the place for its answer."""

    def __init__(self, question: Callable[[Any], Any]) -> None:
        self._question = question
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run(self, connection: Any) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            answer = self._question(connection)
        except Exception as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(answer)

    def refuse(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
