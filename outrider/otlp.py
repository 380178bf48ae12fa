"""The way of telemetry out of a process: an OTLP/gRPC endpoint that may be away.

Knows the channel, what is worth another try and what is logged; does not know what is sent. All of
it happens on exporting threads: nothing here ever makes a request wait. Each kind of trouble is
logged once until a send has succeeded again.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from outrider.credentials import PLAIN, Credentials, open_channel

logger = logging.getLogger(__name__)

_OPTIONS: Final = (
    # Endpoints of one process would otherwise share a subchannel and its backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
)
_TIMEOUT_S: Final = 10.0
_FIRST_DELAY_S: Final = 0.1
_LAST_DELAY_S: Final = 5.0

# What may succeed later (OTLP specification, "Failures"); anything else is lost at once.
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
# A receiver that is busy and one that takes no message of this size say the same word; without an
# end to it the second would hold up all that comes later.
MAX_EXHAUSTED: Final = 8


class Delivery(Protocol):
    """Takes encoded telemetry, on an exporting thread; False where it was lost."""

    def traces(self, request: ExportTraceServiceRequest) -> bool: ...

    def metrics(self, request: ExportMetricsServiceRequest) -> bool: ...

    def hurry(self) -> None:
        """The process ends: nothing is waited for any more."""

    def close(self) -> None: ...


class OtlpEndpoint:
    """A channel to `endpoint` (as TraceSettings has it).

    `credentials` are shown to it; without authorities among them, an `https` URL is checked against
    the system's, and all else is plain. `metadata` go with each call. `lost` counts failed sends by
    status, `lost_spans` the spans among them.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        credentials: Credentials = PLAIN,
        metadata: Sequence[tuple[str, str]] = (),
        rng: random.Random | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.lost: Counter[str] = Counter()
        self.lost_spans = 0
        self._metadata = tuple(metadata)
        self._rng = rng or random.Random()
        self._channel = _channel(endpoint, credentials)
        self._traces: Any = TraceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._metrics: Any = MetricsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._hurry = threading.Event()
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def traces(self, request: ExportTraceServiceRequest) -> bool:
        """Send, again and again while the endpoint is away; the caller's queue is what is bounded.

        False once it was refused, or is still away when the process ends.
        """
        delay = _FIRST_DELAY_S
        exhausted = 0
        while True:
            code = self._send(self._traces.Export, request, _rejected_spans)
            if code is None:
                return True
            exhausted += code is grpc.StatusCode.RESOURCE_EXHAUSTED
            for_good = code not in _TRANSIENT or exhausted >= MAX_EXHAUSTED
            if for_good or self._hurry.wait(delay * self._rng.uniform(0.8, 1.2)):
                self.lost[code.name] += 1
                self.lost_spans += _count(request)
                return False
            delay = min(delay * 2, _LAST_DELAY_S)

    def metrics(self, request: ExportMetricsServiceRequest) -> bool:
        """Send once: sums are cumulative, so that the next ones make up for lost ones."""
        code = self._send(self._metrics.Export, request, _rejected_points)
        if code is not None:
            self.lost[code.name] += 1
        return code is None

    def hurry(self) -> None:
        self._hurry.set()

    def close(self) -> None:
        if self.lost_spans:
            logger.warning("telemetry to %s: spans lost: %d", self.endpoint, self.lost_spans)
            self.lost_spans = 0
        self._hurry.set()
        self._channel.close()

    def _send(
        self, export: Any, request: object, rejected: Callable[[Any], int]
    ) -> grpc.StatusCode | None:
        """None where it was taken, else the status."""
        try:
            answer = export(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            if not self._hurry.is_set() or code not in _TRANSIENT:
                self._tell(code.name, error.details() or "")
            return code
        except ValueError as error:
            # The channel was closed while this thread was still at it.
            if not self._hurry.is_set():
                raise
            logger.debug("telemetry to %s was cut off: %s", self.endpoint, error)
            return grpc.StatusCode.CANCELLED
        if count := rejected(answer):
            self._tell("rejected", f"{count} of its items: {answer.partial_success.error_message}")
        else:
            self._recovered()
        return None

    def _tell(self, kind: str, detail: str) -> None:
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        logger.warning(
            "telemetry to %s: %s: %s (serving goes on; further ones of this kind are not logged)",
            self.endpoint,
            kind,
            " ".join(detail.split())[:300],
        )

    def _recovered(self) -> None:
        with self._lock:
            if not self._told:
                return
            self._told.clear()
        logger.info("telemetry to %s: sent again", self.endpoint)


def _channel(endpoint: str, credentials: Credentials) -> grpc.Channel:
    if endpoint.startswith("http://"):
        return open_channel(endpoint.removeprefix("http://"), PLAIN, _OPTIONS)
    target = endpoint.removeprefix("https://")
    if target != endpoint and credentials.authorities is None:
        system = grpc.ssl_channel_credentials()
        return grpc.secure_channel(target, system, [*_OPTIONS, ("grpc.enable_http_proxy", 0)])
    return open_channel(target, credentials, _OPTIONS)


def _count(request: ExportTraceServiceRequest) -> int:
    return sum(
        len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans
    )


def _rejected_spans(answer: Any) -> int:
    return int(answer.partial_success.rejected_spans)


def _rejected_points(answer: Any) -> int:
    return int(answer.partial_success.rejected_data_points)
