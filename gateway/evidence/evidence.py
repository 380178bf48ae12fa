"""One gateway's evidence: received, summed, kept, passed on, and asked for.

Knows which parts there are and what happens when the file fails; does not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

from prometheus_client import CollectorRegistry, Gauge

from gateway.evidence.aggregate import Aggregate
from gateway.evidence.answers import Answer
from gateway.evidence.counts import EvidenceCounts
from gateway.evidence.export import Format, Rows, export, export_records
from gateway.evidence.filters import AcceptanceQuery, Selection
from gateway.evidence.queries import acceptance, one_request, recent_requests
from gateway.evidence.recent import RecentRequests
from gateway.evidence.records import RequestRecord
from gateway.evidence.settings import EvidenceSettings
from gateway.evidence.store import EvidenceStore, StoreUnavailableError
from outrider.credentials import PLAIN, Credentials

if TYPE_CHECKING:
    import duckdb

    from gateway.evidence.forwarder import Forwarder
    from gateway.evidence.intake import Intake
    from gateway.evidence.local_exporter import LocalDelivery
    from gateway.evidence.receiver import Receiver
    from gateway.evidence.reported import ReportedMetrics

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

ANSWER_S: Final = 30.0
EXPORT_S: Final = 300.0
# Verifiers send spans about a second after their requests; a gateway that stops waits for these.
LINGER_S: Final = 1.5


class Evidence:
    """Must be started and stopped on one event loop. `registry` holds its Prometheus metrics.

    `aggregate` and `recent` are what happened since the start, for whoever shows it live.
    `credentials` are shown to the collector and demanded of exporters.
    """

    def __init__(self, settings: EvidenceSettings, credentials: Credentials = PLAIN) -> None:
        self.settings = settings
        self.registry = CollectorRegistry()
        self.counts = EvidenceCounts(self.registry)
        self.aggregate = Aggregate()
        self.recent = RecentRequests()
        self.address = ""
        self._credentials = credentials
        self._store: EvidenceStore | None = None
        if settings.path:
            self._store = EvidenceStore(
                Path(settings.path).expanduser(),
                max_bytes=settings.max_mb * 1024 * 1024,
                max_age_s=settings.max_age_s,
                on_stored=self.counts.stored,
                on_dropped=self.counts.dropped,
            )
            Gauge(
                "outrider:evidence_store_up",
                "1 while the evidence file can be written.",
                registry=self.registry,
            ).set_function(lambda: float(not self.problem))
        self._forwarder: Forwarder | None = None
        self._intake: Intake | None = None
        self._reported: ReportedMetrics | None = None
        self._receiver: Receiver | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_request_at = -LINGER_S

    @property
    def problem(self) -> str:
        """Why the file is not written now; empty where it is, or where there is none."""
        return self._store.problem if self._store is not None else ""

    async def start(self) -> None:
        """Open the file and listen. Raises InputError where the address cannot be listened at."""
        if self._store is not None:
            self._store.start()
        if self.settings.forward:
            from gateway.evidence.forwarder import Forwarder

            self._forwarder = Forwarder(
                self.settings.forward, self.counts, credentials=self._credentials
            )
            self._forwarder.start()
        if self.settings.listen:
            from gateway.evidence.receiver import Receiver

            self._receiver = Receiver(self._taking(), self.counts, self._forwarder)
            await self._receiver.start(self.settings.listen, self._credentials)
            self.address = self._receiver.address
            logger.info("OTLP is received at %s", self.address)

    async def stop(self) -> None:
        """Stop listening, write what waits, give the forwarder a second.

        The verifiers' spans of requests that have just ended are waited for: at most LINGER_S.
        """
        if self._receiver is not None:
            await asyncio.sleep(max(0.0, self._last_request_at + LINGER_S - time.monotonic()))
            await self._receiver.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._forwarder is not None:
            await self._forwarder.stop()
        if self._store is not None:
            await asyncio.to_thread(self._store.stop)

    def delivery(self) -> LocalDelivery:
        """Where this process's own spans go; to be called on the event loop."""
        from gateway.evidence.forwarder import METRICS_METHOD, TRACES_METHOD
        from gateway.evidence.local_exporter import LocalDelivery

        intake = self._taking()

        def traces(request: object) -> None:
            self._last_request_at = time.monotonic()
            self._take_own(TRACES_METHOD, request, intake.traces)

        def metrics(request: object) -> None:
            self._take_own(METRICS_METHOD, request, intake.metrics)

        return LocalDelivery(asyncio.get_running_loop(), traces, metrics)

    def take(self, record: RequestRecord) -> None:
        """Count and keep one request."""
        if not self.settings.keeps:
            return
        self.aggregate.add(record)
        self.recent.add(record)
        if self._store is not None:
            self._store.put(record)

    def reported(self) -> dict[str, float]:
        """What verifiers' metrics say, summed over verifiers; empty before the first."""
        return self._reported.totals() if self._reported is not None else {}

    @property
    def relabelled(self) -> int:
        return self._intake.relabelled if self._intake is not None else 0

    async def acceptance(self, query: AcceptanceQuery) -> Answer:
        """From the file, or from memory where none works. Raises InputError, TimeoutError."""
        return await self._ask(
            lambda connection: acceptance(connection, query),
            lambda: self.aggregate.query(query),
        )

    async def requests(
        self, selection: Selection, limit: int, before: str = ""
    ) -> list[RequestRecord] | None:
        """The newest, without rounds; None where `before` is no request's id."""
        return await self._ask(
            lambda connection: recent_requests(connection, selection, limit, before),
            lambda: self.recent.select(selection, limit, before),
        )

    async def request(self, name: str) -> RequestRecord | None:
        """The newest of that request or span id, with its rounds."""
        return await self._ask(
            lambda connection: one_request(connection, name), lambda: self.recent.find(name)
        )

    async def export(self, rows: Rows, format_: Format, selection: Selection) -> BinaryIO:
        """An open file of all that is selected. Raises TimeoutError, ExportFailedError."""
        if self._store is not None:
            try:
                return await self._store.ask(
                    lambda connection: export(connection, rows, format_, selection), EXPORT_S
                )
            except StoreUnavailableError as error:
                logger.debug("exporting from memory: %s", error)
        records = self.recent.all()
        return await asyncio.to_thread(export_records, records, rows, format_, selection)

    async def _ask(
        self,
        question: Callable[[duckdb.DuckDBPyConnection], _T],
        from_memory: Callable[[], _T],
    ) -> _T:
        if self._store is not None:
            try:
                return await self._store.ask(question, ANSWER_S)
            except StoreUnavailableError as error:
                # The store has logged it, and every answer says so.
                logger.debug("answering from memory: %s", error)
        return from_memory()

    def _taking(self) -> Intake:
        """Made with the first need: OTLP's messages take a while to import."""
        if self._intake is None:
            from gateway.evidence.intake import Intake
            from gateway.evidence.reported import ReportedMetrics

            self._reported = ReportedMetrics()
            self._intake = Intake(self.counts, self.take, reported=self._reported)
        return self._intake

    def _take_own(
        self, method: str, request: object, read: Callable[..., Awaitable[object]]
    ) -> None:
        if self._forwarder is not None:
            self._forwarder.put(method, request.SerializeToString())  # type: ignore[attr-defined]

        async def run() -> None:
            await read(request)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
