"""Sends OTLP messages on to another collector, as they came.

Knows queues, retries and what is logged; does not know what is in a message. Never makes a sender
wait: what does not fit is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

import grpc
import grpc.aio

from gateway.evidence.counts import EvidenceCounts
from outrider.backoff import Backoff
from outrider.credentials import PLAIN, Credentials, open_aio_channel

logger = logging.getLogger(__name__)

TRACES_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS_METHOD: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

MAX_MESSAGES: Final = 1_000
MAX_BYTES: Final = 32 * 1024 * 1024
_TIMEOUT_S: Final = 10.0
_STOP_S: Final = 1.0
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
)
# Worth another try, by OTLP's specification ("Failures").
_TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
# A collector that is busy and one that takes no message of this size say the same word; without an
# end to it the second would hold up all that comes later.
MAX_EXHAUSTED: Final = 8


class Forwarder:
    """A bounded queue to the collector at `address` (as TraceSettings has an endpoint).

    To be used on one event loop. `credentials` are shown to it; without authorities among them, an
    `https` URL is checked against the system's.
    """

    def __init__(
        self,
        address: str,
        counts: EvidenceCounts,
        *,
        credentials: Credentials = PLAIN,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        backoff: Backoff | None = None,
    ) -> None:
        self.address = address
        self._counts = counts
        self._credentials = credentials
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._backoff = backoff or Backoff(0.2, 5.0)
        self._queue: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._told: set[str] = set()
        # How often the first in the queue was told RESOURCE_EXHAUSTED.
        self._exhausted = 0
        self._channel: grpc.aio.Channel | None = None
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._channel = _channel(self.address, self._credentials)
        self._sending = asyncio.create_task(self._send_for_ever(self._channel))

    def put(self, method: str, message: bytes) -> None:
        """Send `message` behind those that wait; the oldest give way where the queue is full."""
        if len(message) > self._max_bytes:
            self._drop("too_large", "a message is larger than the queue")
            return
        self._queue.append((method, message))
        self._bytes += len(message)
        while len(self._queue) > self._max_messages or self._bytes > self._max_bytes:
            self._bytes -= len(self._queue.popleft()[1])
            self._exhausted = 0
            self._drop("queue_full", "it takes less than comes in, and the oldest are dropped")
        self._idle.clear()
        self._changed.set()

    async def stop(self) -> None:
        """Give what waits a second more, then drop it."""
        if self._sending is None or self._channel is None:
            return
        try:
            await asyncio.wait_for(self._idle.wait(), _STOP_S)
        except TimeoutError:
            for _ in self._queue:
                self._counts.forward_dropped("stopped")
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        self._sending = None
        await self._channel.close(None)

    async def _send_for_ever(self, channel: grpc.aio.Channel) -> None:
        while True:
            while not self._queue:
                self._idle.set()
                self._changed.clear()
                await self._changed.wait()
            entry = self._queue[0]
            if await self._sent(channel, *entry):
                self._exhausted = 0
                # The queue may have dropped it meanwhile.
                if self._queue and self._queue[0] is entry:
                    self._queue.popleft()
                    self._bytes -= len(entry[1])
            else:
                await asyncio.sleep(self._backoff.next_delay())

    async def _sent(self, channel: grpc.aio.Channel, method: str, message: bytes) -> bool:
        """Whether the message is done with: taken, or refused for good."""
        call: Any = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
        try:
            await call(message, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            detail = " ".join((error.details() or "").split())[:300]
            self._tell(error.code().name, f"{error.code().name}: {detail}")
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self._exhausted += 1
            if error.code() in _TRANSIENT and self._exhausted < MAX_EXHAUSTED:
                return False
            self._counts.forward_dropped("refused")
            return True
        self._counts.forwarded()
        self._backoff.reset()
        if self._told:
            self._told.clear()
            logger.info("OTLP collector %s takes evidence again", self.address)
        return True

    def _drop(self, reason: str, detail: str) -> None:
        self._counts.forward_dropped(reason)
        self._tell(reason, detail)

    def _tell(self, kind: str, detail: str) -> None:
        if kind in self._told:
            return
        self._told.add(kind)
        logger.warning(
            "OTLP collector %s: %s (serving goes on; further ones of this kind are not logged)",
            self.address,
            detail,
        )


def _channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    if address.startswith("http://"):
        return open_aio_channel(address.removeprefix("http://"), PLAIN, _OPTIONS)
    target = address.removeprefix("https://")
    if target != address and credentials.authorities is None:
        system = grpc.ssl_channel_credentials()
        return grpc.aio.secure_channel(target, system, [*_OPTIONS, ("grpc.enable_http_proxy", 0)])
    return open_aio_channel(target, credentials, _OPTIONS)
