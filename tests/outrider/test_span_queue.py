"""The bounds of what waits, and of what one message holds."""

from __future__ import annotations

import logging
import threading

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanLimits, TracerProvider

from outrider import span_queue
from outrider.span_queue import SpanQueue
from tests.collector import WAIT_S


class Sink:
    """Takes spans as long as its gate is open; nobody gets past a closed one."""

    def __init__(self) -> None:
        self.messages: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.takes = True

    def traces(self, request: ExportTraceServiceRequest) -> bool:
        self.reached.set()
        self.gate.wait(WAIT_S)
        (resource,) = request.resource_spans
        (scope,) = resource.scope_spans
        self.messages.append([span.name for span in scope.spans])
        return self.takes

    def metrics(self, request: ExportMetricsServiceRequest) -> bool:
        return True

    def hurry(self) -> None:
        return

    def close(self) -> None:
        return


class Source:
    """Ends spans into a queue; `end(events)` ends one with so many events."""

    def __init__(self, sink: Sink) -> None:
        self.queue = SpanQueue(sink, delay_ms=5)
        self._provider = TracerProvider(
            shutdown_on_exit=False, span_limits=SpanLimits(max_events=100_000)
        )
        self._provider.add_span_processor(self.queue)
        self._tracer = self._provider.get_tracer("t")
        self._count = 0

    def end(self, events: int = 0) -> None:
        span = self._tracer.start_span(str(self._count))
        self._count += 1
        for _ in range(events):
            span.add_event("e")
        span.end()

    def finish(self) -> None:
        self._provider.shutdown()


def test_spans_arrive_in_order() -> None:
    sink = Sink()
    source = Source(sink)
    for _ in range(600):
        source.end()
    source.finish()
    assert [int(name) for message in sink.messages for name in message] == list(range(600))


def test_what_does_not_fit_is_dropped_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    sink = Sink()
    sink.gate.clear()
    source = Source(sink)
    monkeypatch.setattr(span_queue, "MAX_SPANS", 10)
    for _ in range(25):
        source.end()
    assert source.queue.dropped == 15
    (record,) = caplog.records
    assert "10 spans are too many" in record.getMessage()
    sink.gate.set()
    source.finish()
    assert [name for message in sink.messages for name in message] == [str(i) for i in range(10)]


def test_what_was_sent_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    source = Source(sink)
    monkeypatch.setattr(span_queue, "MAX_SPANS", 1)
    for _ in range(3):
        source.end()
        source.queue.force_flush()
    source.finish()
    assert source.queue.dropped == 0
    assert sum(map(len, sink.messages)) == 3


def test_events_weigh_as_much_as_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_queue, "MAX_QUEUED", 20)
    sink = Sink()
    sink.gate.clear()
    source = Source(sink)
    source.end(events=12)
    source.end(events=12)
    source.end(events=5)
    assert source.queue.dropped == 1
    sink.gate.set()
    source.finish()
    assert [name for message in sink.messages for name in message] == ["0", "2"]


def test_a_message_holds_so_much_and_one_span_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_queue, "MAX_IN_MESSAGE", 6)
    sink = Sink()
    sink.gate.clear()
    source = Source(sink)
    source.end()
    assert sink.reached.wait(WAIT_S)  # The first one is on its way: the others form one batch.
    for events in (1, 2, 3, 10, 0):
        source.end(events)
    sink.gate.set()
    source.finish()
    assert sink.messages == [["0"], ["1", "2"], ["3"], ["4"], ["5"]]


def test_a_message_that_weighs_too_much_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_queue, "MAX_MESSAGE_BYTES", 600)
    sink = Sink()
    sink.gate.clear()
    source = Source(sink)
    source.end()
    assert sink.reached.wait(WAIT_S)
    for events in (0, 0, 2, 100):
        source.end(events)
    sink.gate.set()
    source.finish()
    assert sink.messages == [["0"], ["1", "2"], ["3"], ["4"]]


def test_what_is_lost_leaves_the_queue_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    sink.takes = False
    source = Source(sink)
    monkeypatch.setattr(span_queue, "MAX_SPANS", 1)
    for _ in range(3):
        source.end()
        source.queue.force_flush()
    source.finish()
    assert source.queue.dropped == 0
