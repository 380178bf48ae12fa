"""Floods of many points, many bytes or many rounds: weighed, refused, and in nobody's way."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client import CollectorRegistry

from gateway.evidence import intake, receiver
from gateway.evidence.counts import EvidenceCounts
from gateway.evidence.intake import Allowance, Intake
from gateway.evidence.recent import RecentRequests
from gateway.evidence.records import RequestRecord
from gateway.evidence.reported import ReportedMetrics
from gateway.evidence.spans import parse_request
from outrider import telemetry as names
from tests.gateway.evidence.otlp import export_of, metrics_of, pairs, record, request_span
from tests.gateway.evidence.test_receiver import WAIT_S, Scene


async def test_a_message_has_a_size(socket_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_MESSAGE_BYTES", 10_000)
    made = Scene(socket_address)
    await made.receiver.start(socket_address)
    large = request_span(record({}), **{names.RULE: "x" * 20_000})
    for compression in (None, grpc.Compression.Gzip):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.traces.Export(export_of([large]), timeout=WAIT_S, compression=compression)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    async with asyncio.timeout(WAIT_S):
        while made.counts.dropped_by_reason() != {"unread": 2}:
            await asyncio.sleep(0.002)
    assert (await made.send(request_span(record({})))).rejected_spans == 0
    await made.channel.close(None)
    await made.receiver.stop()


async def test_so_many_messages_are_read_at_once(
    socket_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "MAX_CONCURRENT", 1)
    made = Scene(socket_address)
    reading, go_on = asyncio.Event(), asyncio.Event()
    traces = made.intake.traces

    async def slow(request: ExportTraceServiceRequest) -> intake.Verdict:
        reading.set()
        await go_on.wait()
        return await traces(request)

    monkeypatch.setattr(made.intake, "traces", slow)
    await made.receiver.start(socket_address)
    first = asyncio.create_task(made.send(request_span(record({}))))
    await asyncio.wait_for(reading.wait(), WAIT_S)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await made.send(request_span(record({})))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert made.counts.dropped_by_reason() == {"busy": 1}
    go_on.set()
    await first
    await made.send(request_span(record({})))
    assert len(made.taken) == 2
    await made.channel.close(None)
    await made.receiver.stop()


def many_points(count: int) -> ExportMetricsServiceRequest:
    request = metrics_of({names.METRIC_STEPS: 1})
    (metric,) = request.resource_metrics[0].scope_metrics[0].metrics
    for number in range(1, count):
        metric.sum.data_points.add(as_int=1, attributes=pairs({"n": str(number)}))
    return request


async def test_a_metric_weighs_as_much_as_its_points() -> None:
    counts = EvidenceCounts(CollectorRegistry())
    allowance = Allowance(rate=0.0, burst=10.0)
    made = Intake(counts, lambda r: None, reported=ReportedMetrics(), allowance=allowance)
    verdict = await made.metrics(many_points(11))
    assert verdict.rejected == 11
    assert counts.dropped_by_reason() == {"flood": 11}
    assert (await made.metrics(many_points(10))).rejected == 0


async def test_a_span_weighs_as_much_as_its_bytes() -> None:
    counts = EvidenceCounts(CollectorRegistry())
    allowance = Allowance(rate=0.0, burst=10.0)
    made = Intake(counts, lambda r: None, reported=ReportedMetrics(), allowance=allowance)
    large = request_span(record({}), **{names.RULE: "x" * 12 * 1024})
    assert (await made.traces(export_of([large]))).rejected == 1
    assert counts.dropped_by_reason() == {"flood": 1}
    assert (await made.traces(export_of([request_span(record({}))]))).rejected == 0


async def test_requests_have_their_turn_between_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_TURN", 2)
    made = Intake(EvidenceCounts(CollectorRegistry()), lambda r: None, reported=ReportedMetrics())
    reading = asyncio.create_task(made.metrics(many_points(10)))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5


async def test_a_long_span_is_read_beside_the_loop_and_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def parse(span: Span, now_ns: int) -> RequestRecord:
        threads.append(threading.current_thread())
        both.wait(WAIT_S)
        return parse_request(span, now_ns)

    both = threading.Barrier(2)
    monkeypatch.setattr(intake, "_TURN", 1)
    monkeypatch.setattr(intake, "parse_request", parse)
    taken: list[RequestRecord] = []
    made = Intake(EvidenceCounts(CollectorRegistry()), taken.append, reported=ReportedMetrics())
    span = request_span(record({"ngram": [(2, 1)]}))
    await asyncio.gather(made.traces(export_of([span])), made.traces(export_of([span])))
    assert threading.current_thread() not in threads
    assert len(taken) == 1


def test_recent_requests_are_bounded_in_bytes() -> None:
    recent = RecentRequests(max_bytes=100)
    kept = [record({}, size=40) for _ in range(5)]
    for one in kept:
        recent.add(one)
    assert recent.all() == kept[3:]
    large = record({}, size=1000)
    recent.add(large)
    assert recent.all() == [large]


def test_a_record_knows_how_large_its_span_was() -> None:
    span = request_span(record({}))
    assert parse_request(span, span.end_time_unix_nano).size == span.ByteSize()
