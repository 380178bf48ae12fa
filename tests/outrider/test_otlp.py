"""The endpoint: what arrives, what is tried again, what is lost, and what the log says of it."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from outrider import otlp
from outrider.otlp import OtlpEndpoint
from tests.collector import WAIT_S, Collector, collecting, until


def spans(*names: str) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for name in names:
        scope.spans.add(name=name, trace_id=b"t" * 16, span_id=b"s" * 8)
    return request


def metrics(value: int) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.sum.data_points.add(as_int=value)
    return request


class Endpoint(OtlpEndpoint):
    """With `traces` on a thread, as it is called by exporting threads."""

    def in_background(self, request: ExportTraceServiceRequest) -> Callable[[], bool]:
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(self.traces(request)))
        thread.start()

        def result() -> bool:
            thread.join(WAIT_S)
            (taken,) = results
            return taken

        return result


@pytest.fixture
def address(socket_dir: Path) -> str:
    return f"unix:{socket_dir}/c.sock"


def connect(address: str) -> Endpoint:
    return Endpoint(address, rng=random.Random(1))


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_tcp(scheme: str) -> None:
    with collecting("127.0.0.1:0") as collector:
        endpoint = connect(f"{scheme}{collector.address}")
        assert endpoint.traces(spans("a", "b"))
        assert endpoint.metrics(metrics(7))
        endpoint.close()
    assert collector.names() == ["a", "b"]
    assert collector.point("m") == 7


def test_a_unix_socket_and_metadata(address: str) -> None:
    with collecting(address) as collector:
        endpoint = Endpoint(address, metadata=[("authorization", "Bearer x")])
        assert endpoint.traces(spans("a"))
        endpoint.close()
    assert collector.names() == ["a"]
    assert collector.metadata[0]["authorization"] == "Bearer x"


def test_spans_wait_for_an_endpoint_that_is_away(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outrider.otlp")
    endpoint = connect(address)
    taken = endpoint.in_background(spans("a"))
    until(lambda: bool(caplog.records))
    with collecting(address) as collector:
        assert taken()
        assert collector.names() == ["a"]
        collector.kill()
        taken = endpoint.in_background(spans("b"))
        until(lambda: len(caplog.records) == 3)
        collector.start()
        assert taken()
    assert collector.names() == ["a", "b"]
    told = [(r.levelname, "UNAVAILABLE" in r.getMessage()) for r in caplog.records]
    assert told == [("WARNING", True), ("INFO", False)] * 2
    assert not endpoint.lost
    endpoint.close()


def test_what_is_refused_is_lost_at_once_and_logged_once(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting(address) as collector:
        collector.refuse = grpc.StatusCode.UNAUTHENTICATED
        endpoint = connect(address)
        assert [endpoint.traces(spans("a")) for _ in range(3)] == [False] * 3
        assert collector.calls == 3
        endpoint.close()
        endpoint.close()
    assert endpoint.lost == {"UNAUTHENTICATED": 3}
    refused, in_all = caplog.records
    assert "the test refuses" in refused.getMessage()
    assert "spans lost: 3" in in_all.getMessage()


def test_a_message_that_is_too_large_there_holds_up_no_other(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "_FIRST_DELAY_S", 0.0)
    with collecting(address) as collector:
        collector.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
        endpoint = connect(address)
        assert not endpoint.traces(spans("a"))
        assert collector.calls == otlp.MAX_EXHAUSTED
        collector.refuse = None
        assert endpoint.traces(spans("b"))
        assert collector.names() == ["b"]
        endpoint.close()
    assert endpoint.lost == {"RESOURCE_EXHAUSTED": 1}


def test_partial_success_is_no_reason_to_send_again(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting(address) as collector:
        collector.reject = 2
        endpoint = connect(address)
        assert endpoint.traces(spans("a", "b")) and endpoint.traces(spans("c", "d"))
        assert collector.calls == 2
        endpoint.close()
    (record,) = caplog.records
    assert "2 of its items: too many" in record.getMessage()


def test_metrics_are_not_tried_again(address: str, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = connect(address)
    assert not endpoint.metrics(metrics(1))
    assert endpoint.lost == {"UNAVAILABLE": 1}
    assert len(caplog.records) == 1
    endpoint.close()


def test_a_process_that_ends_waits_for_nobody(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = connect(address)
    taken = endpoint.in_background(spans("a"))
    until(lambda: bool(caplog.records))
    endpoint.hurry()
    assert not taken()
    assert not endpoint.traces(spans("b"))
    assert endpoint.lost == {"UNAVAILABLE": 2}
    endpoint.close()


def test_closing_ends_a_send_that_hangs(address: str) -> None:
    with collecting(address) as collector:
        collector.hold = threading.Event()
        endpoint = connect(address)
        taken = endpoint.in_background(spans("a"))
        collector.wait(lambda: collector.calls == 1)
        endpoint.close()
        assert not taken()
        assert not endpoint.traces(spans("b"))
        assert endpoint.lost == {"CANCELLED": 2}
        collector.hold.set()


def test_a_collector_of_the_tests_hides_nothing(address: str) -> None:
    """What arrives is read as it was sent."""
    request = spans("a")
    (span,) = request.resource_spans[0].scope_spans[0].spans
    span.attributes.add(key="n").value.int_value = 3
    span.attributes.add(key="list").value.array_value.values.add(string_value="x")
    span.attributes.add(key="empty").value.array_value.SetInParent()
    with collecting(address) as collector:
        endpoint = connect(address)
        endpoint.traces(request)
        endpoint.close()
    assert isinstance(collector, Collector)
    assert collector.spans[0].attributes == {"n": 3, "list": ["x"], "empty": []}
