"""Sets OpenTelemetry up for one process: its tracer, its meter, and their end.

Knows the SDK; does not know what is traced or how it travels. Import it only where telemetry is on:
the SDK costs a quarter of a second.
"""

from __future__ import annotations

import logging
import threading
from importlib import metadata
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from outrider.credentials import PLAIN, Credentials
from outrider.otlp import Delivery, OtlpEndpoint
from outrider.span_queue import DELAY_MS, MAX_IN_MESSAGE, SpanQueue
from outrider.telemetry import SCOPE
from outrider.trace_settings import TraceSettings

logger = logging.getLogger(__name__)

# Rounds of a request that are told one by one; its sums are of all of them.
MAX_EVENTS: Final = MAX_IN_MESSAGE
_MAX_ATTRIBUTES: Final = 128
_METRICS_INTERVAL_MS: Final = 5000
# How long the end of a process may wait for its last spans.
FLUSH_S: Final = 2.0


class Telemetry:
    """One process's tracer and meter. Must be shut down; what is left is sent then.

    `tracer` decides by the caller's word, else by a share of trace ids. `settings` must be
    enabled; `instance_id` is this process's own. `credentials` are shown to the settings' endpoint;
    `delivery` takes what is emitted instead of it.
    """

    def __init__(
        self,
        settings: TraceSettings,
        service: str,
        instance_id: str,
        *,
        credentials: Credentials = PLAIN,
        delivery: Delivery | None = None,
        delay_ms: int = DELAY_MS,
        metrics_interval_ms: int = _METRICS_INTERVAL_MS,
    ) -> None:
        version = metadata.version("outrider")
        resource = Resource(
            {
                "service.name": service,
                "service.instance.id": instance_id,
                "service.version": version,
                "telemetry.sdk.language": "python",
                "telemetry.sdk.name": "opentelemetry",
                "telemetry.sdk.version": metadata.version("opentelemetry-sdk"),
            }
        )
        self._version = version
        self._resource = resource
        self._metrics_interval_ms = metrics_interval_ms
        self._delivery = delivery or OtlpEndpoint(settings.endpoint, credentials=credentials)
        self._queue = SpanQueue(self._delivery, delay_ms=delay_ms)
        self._traces = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(
                max_events=MAX_EVENTS,
                max_span_attributes=_MAX_ATTRIBUTES,
                max_event_attributes=_MAX_ATTRIBUTES,
            ),
        )
        self._traces.add_span_processor(self._queue)
        self._meters: MeterProvider | None = None
        self._ended = False
        self.tracer: Tracer = self._traces.get_tracer(SCOPE, version)

    @property
    def dropped(self) -> int:
        """Spans that found the queue full."""
        return self._queue.dropped

    def meter(self) -> Meter:
        """The process's meter; what it observes is sent every few seconds from now on."""
        if self._meters is None:
            reader = PeriodicExportingMetricReader(
                _Metrics(self._delivery), export_interval_millis=self._metrics_interval_ms
            )
            self._meters = MeterProvider(
                metric_readers=[reader], resource=self._resource, shutdown_on_exit=False
            )
        return self._meters.get_meter(SCOPE, self._version)

    def flush(self) -> None:
        """Send what has ended so far. Blocks as long as the endpoint is away."""
        self._traces.force_flush()
        if self._meters is not None:
            self._meters.force_flush()

    def shutdown(self, timeout_s: float = FLUSH_S) -> None:
        """Send what is left, for at most about `timeout_s` seconds. Blocks. Idempotent."""
        if self._ended:
            return
        self._ended = True
        self._delivery.hurry()
        # Closed under it, a send that hangs ends.
        last = threading.Timer(timeout_s, self._delivery.close)
        last.daemon = True
        last.start()
        try:
            # In this order: ending the traces closes the delivery.
            if self._meters is not None:
                self._meters.shutdown(timeout_s * 1000)
            self._traces.shutdown()
        finally:
            last.cancel()
        if self.dropped:
            logger.warning("telemetry: %d spans were dropped in all", self.dropped)


class _Metrics(MetricExporter):
    def __init__(self, delivery: Delivery) -> None:
        super().__init__()
        self._delivery = delivery

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        sent = self._delivery.metrics(encode_metrics(metrics_data))
        return MetricExportResult.SUCCESS if sent else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """The delivery is the spans' too, and is closed with them."""
