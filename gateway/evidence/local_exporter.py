"""How the gateway's own spans reach its own evidence: without a port.

Knows threads; it is a `Delivery` of outrider/otlp.py. What it takes is forwarded like the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_Request = TypeVar("_Request")


class LocalDelivery:
    """Hands encoded telemetry of an exporting thread to the event loop that evidence runs on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        traces: Callable[[ExportTraceServiceRequest], None],
        metrics: Callable[[ExportMetricsServiceRequest], None],
    ) -> None:
        self._loop = loop
        self._traces = traces
        self._metrics = metrics

    def traces(self, request: ExportTraceServiceRequest) -> bool:
        return self._hand(self._traces, request)

    def metrics(self, request: ExportMetricsServiceRequest) -> bool:
        return self._hand(self._metrics, request)

    def hurry(self) -> None:
        """Nothing is ever waited for."""

    def close(self) -> None:
        """Nothing is open."""

    def _hand(self, take: Callable[[_Request], None], request: _Request) -> bool:
        try:
            self._loop.call_soon_threadsafe(take, request)
        except RuntimeError:
            # The loop has ended: its process does too.
            return False
        return True
