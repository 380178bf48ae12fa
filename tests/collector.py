"""An OTLP/gRPC collector inside the test's process, that can be killed and started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

WAIT_S = 20.0


@dataclass(frozen=True)
class Event:
    name: str
    attributes: dict[str, Any]
    time_ns: int


@dataclass(frozen=True)
class Span:
    """A span as a receiver reads it; arrays are lists, ids hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[Event]
    status: int
    message: str
    resource: dict[str, Any]
    scope: str

    def events_of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@dataclass
class Collector:
    """What arrived. `refuse` is a status that exports are answered with, `reject` rejects spans."""

    address: str
    spans: list[Span] = field(default_factory=list)
    points: dict[tuple[str, tuple[tuple[str, Any], ...]], int] = field(default_factory=dict)
    metric_resources: list[dict[str, Any]] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    calls: int = 0
    refuse: grpc.StatusCode | None = None
    reject: int = 0
    hold: threading.Event | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    _server: grpc.Server | None = None

    def start(self) -> None:
        """Listen, again at the same address."""
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        trace_grpc.add_TraceServiceServicer_to_server(_Traces(self), server)  # type: ignore[no-untyped-call]
        metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port(self.address)
        if self.address.endswith(":0"):
            self.address = f"{self.address[:-2]}:{port}"
        server.start()
        self._server = server

    def kill(self) -> None:
        """As a process that is gone: no answer to what is under way."""
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        if self.address.startswith("unix:"):
            Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until what arrived fulfils `condition`; fails after WAIT_S seconds."""
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), self.names()

    def wait_for(self, name: str, count: int = 1) -> list[Span]:
        """The spans of this name, once there are `count`."""
        self.wait(lambda: len(self.of(name)) >= count)
        return self.of(name)

    def of(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def point(self, name: str, **attributes: Any) -> int | None:
        """The last value of a metric's series that has these attributes among its own."""
        for (known, pairs), value in self.points.items():
            if known == name and attributes.items() <= dict(pairs).items():
                return value
        return None

    def answer(self, context: Any) -> None:
        with self.changed:
            self.calls += 1
            self.metadata.append(dict(context.invocation_metadata()))
            self.changed.notify_all()
        if self.hold is not None:
            self.hold.wait(WAIT_S)
        if self.refuse is not None:
            context.abort(self.refuse, "the test refuses")


@contextmanager
def collecting(address: str) -> Iterator[Collector]:
    """A running collector at `unix:PATH` or `HOST:0`."""
    collector = Collector(address)
    collector.start()
    try:
        yield collector
    finally:
        collector.kill()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what other threads will do; fails after WAIT_S seconds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> trace_pb2.ExportTraceServiceResponse:
        self._collector.answer(context)
        answer = trace_pb2.ExportTraceServiceResponse()
        if self._collector.reject:
            answer.partial_success.rejected_spans = self._collector.reject
            answer.partial_success.error_message = "too many"
            return answer
        with self._collector.changed:
            self._collector.sizes.append(request.ByteSize())
            for resource_spans in request.resource_spans:
                resource = _attributes(resource_spans.resource.attributes)
                for scope_spans in resource_spans.scope_spans:
                    self._collector.spans.extend(
                        _span(span, resource, scope_spans.scope.name) for span in scope_spans.spans
                    )
            self._collector.changed.notify_all()
        return answer


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> metrics_pb2.ExportMetricsServiceResponse:
        self._collector.answer(context)
        with self._collector.changed:
            for resource_metrics in request.resource_metrics:
                self._collector.metric_resources.append(
                    _attributes(resource_metrics.resource.attributes)
                )
                for scope in resource_metrics.scope_metrics:
                    for metric in scope.metrics:
                        for point in metric.sum.data_points:
                            pairs = tuple(sorted(_attributes(point.attributes).items()))
                            self._collector.points[metric.name, pairs] = point.as_int
            self._collector.changed.notify_all()
        return metrics_pb2.ExportMetricsServiceResponse()


def _span(span: SpanMessage, resource: dict[str, Any], scope: str) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[Event(e.name, _attributes(e.attributes), e.time_unix_nano) for e in span.events],
        status=span.status.code,
        message=span.status.message,
        resource=resource,
        scope=scope,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in _typed(pairs)}


def _typed(pairs: Any) -> list[KeyValue]:
    return list(pairs)


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
