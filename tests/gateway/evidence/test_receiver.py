"""The OTLP port: what exporters send is counted once, what is wrong is told and harms nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from prometheus_client import CollectorRegistry

from gateway.evidence import intake
from gateway.evidence.counts import EvidenceCounts
from gateway.evidence.forwarder import TRACES_METHOD
from gateway.evidence.intake import Allowance, Intake
from gateway.evidence.receiver import Receiver
from gateway.evidence.records import RequestRecord
from gateway.evidence.reported import ReportedMetrics
from outrider import telemetry as names
from outrider.errors import InputError
from tests.gateway.evidence.otlp import export_of, metrics_of, pairs, record, request_span

WAIT_S = 20.0


class Scene:
    """A receiver, what it took, and stubs to it."""

    def __init__(self, address: str, allowance: Allowance | None = None) -> None:
        self.taken: list[RequestRecord] = []
        self.registry = CollectorRegistry()
        self.counts = EvidenceCounts(self.registry)
        self.reported = ReportedMetrics()
        self.intake = Intake(
            self.counts, self.taken.append, reported=self.reported, allowance=allowance
        )
        self.receiver = Receiver(self.intake, self.counts)
        self.channel = grpc.aio.insecure_channel(address)
        self.traces: Any = TraceServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.metrics: Any = MetricsServiceStub(self.channel)  # type: ignore[no-untyped-call]

    async def send(self, *spans: Span) -> Any:
        return (await self.traces.Export(export_of(spans), timeout=WAIT_S)).partial_success

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"outrider:evidence_{name}_total", labels) or 0.0


@pytest.fixture
async def scene(socket_address: str) -> AsyncIterator[Scene]:
    made = Scene(socket_address)
    await made.receiver.start(socket_address)
    yield made
    await made.channel.close(None)
    await made.receiver.stop()


async def test_a_span_becomes_a_record(scene: Scene) -> None:
    told = [record({"ngram": [(3, 1)]}), record({})]
    answer = await scene.send(*map(request_span, told))
    assert answer.rejected_spans == 0
    assert scene.taken == told
    assert scene.count("spans", kind="request") == 2
    assert scene.count("exports", signal="traces") == 1


async def test_the_same_span_counts_once(scene: Scene) -> None:
    span = request_span(record({}))
    for _ in range(3):
        assert (await scene.send(span, span)).rejected_spans == 0
    assert len(scene.taken) == 1
    assert scene.count("dropped", reason="duplicate") == 5
    assert scene.counts.dropped_by_reason() == {}


async def test_what_is_wrong_is_refused_and_the_rest_taken(scene: Scene) -> None:
    good = [record({}), record({})]
    wrong = request_span(record({"ngram": [(3, 1)]}), **{names.ACCEPTED_TOKENS: 9})
    nameless = replace(record({}), span_id="00" * 8)
    answer = await scene.send(
        request_span(good[0]), wrong, request_span(nameless), request_span(good[1])
    )
    assert answer.rejected_spans == 2
    assert answer.error_message == "9 accepted of 3 draft tokens"
    assert scene.taken == good
    assert scene.counts.dropped_by_reason() == {"identity": 1, "sums": 1}


async def test_a_span_that_was_refused_may_come_again(scene: Scene) -> None:
    told = record({})
    assert (await scene.send(request_span(told, **{names.STEPS: -1}))).rejected_spans == 1
    assert (await scene.send(request_span(told))).rejected_spans == 0
    assert scene.taken == [told]


async def test_spans_of_others_are_no_mistake(scene: Scene) -> None:
    answer = await scene.send(Span(name="GET /"), Span(name=names.PROPOSE_SPAN))
    assert answer.rejected_spans == 0
    assert scene.count("spans", kind="other") == 2
    assert scene.taken == []


async def test_what_is_no_otlp_is_refused_for_good(scene: Scene) -> None:
    export = scene.channel.unary_unary(
        TRACES_METHOD, request_serializer=None, response_deserializer=None
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await export(b"\xff\xff\xff\xff", timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert scene.counts.dropped_by_reason() == {"undecodable": 1}
    assert (await scene.send(request_span(record({})))).rejected_spans == 0


async def test_a_flood_is_refused_and_ends(socket_address: str) -> None:
    now = [0.0]
    made = Scene(socket_address, Allowance(rate=2.0, burst=5.0, clock=lambda: now[0]))
    await made.receiver.start(socket_address)
    spans = [request_span(record({})) for _ in range(8)]
    answer = await made.send(*spans)
    assert answer.rejected_spans == 3
    assert answer.error_message == "more spans than are read in a second"
    assert made.counts.dropped_by_reason() == {"flood": 3}
    metrics = metrics_of({names.METRIC_STEPS: 1})
    refused = await made.metrics.Export(metrics, timeout=WAIT_S)
    assert refused.partial_success.rejected_data_points == 1
    now[0] = 2.0
    assert (await made.send(*spans[5:])).rejected_spans == 0
    assert len(made.taken) == 8
    await made.channel.close(None)
    await made.receiver.stop()


async def test_requests_have_their_turn_between_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_TURN", 2)
    made = Intake(EvidenceCounts(CollectorRegistry()), lambda r: None, reported=ReportedMetrics())
    spans = [request_span(record({})) for _ in range(10)]
    reading = asyncio.create_task(made.traces(export_of(spans)))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5


async def test_remembered_spans_are_bounded() -> None:
    taken: list[RequestRecord] = []
    made = Intake(
        EvidenceCounts(CollectorRegistry()),
        taken.append,
        reported=ReportedMetrics(),
        max_remembered=3,
    )
    spans = [request_span(record({})) for _ in range(5)]
    await made.traces(export_of(spans))
    await made.traces(export_of(spans[-3:]))
    assert len(taken) == 5
    await made.traces(export_of(spans[:1]))
    assert len(taken) == 6


async def test_the_sdks_exporter_is_understood(scene: Scene, socket_address: str) -> None:
    exporter = OTLPSpanExporter(endpoint=socket_address, insecure=True, timeout=WAIT_S)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def emit() -> None:
        with provider.get_tracer("test").start_as_current_span(names.REQUEST_SPAN) as span:
            span.set_attributes(
                {
                    names.STEPS: 1,
                    names.DRAFT_TOKENS: 2,
                    names.ACCEPTED_TOKENS: 1,
                    names.OUTPUT_TOKENS: 9,
                    names.HISTOGRAM: [0, 1, 0],
                    names.ACCEPTED_PER_POSITION: [1, 0],
                    names.PROPOSED_PER_POSITION: [1, 1],
                    names.FINISH_REASONS: ["stop"],
                    names.TEMPERATURE: 1,
                }
            )
        provider.shutdown()

    await asyncio.to_thread(emit)
    (taken,) = scene.taken
    assert taken.sums.num_draft_tokens == 2
    assert taken.temperature == 1.0
    assert taken.finish_reason == "stop"
    assert taken.ended_ns <= time.time_ns()


async def test_metrics_keep_their_last_value(scene: Scene) -> None:
    for value in (3, 5):
        await scene.metrics.Export(metrics_of({names.METRIC_STEPS: value}), timeout=WAIT_S)
    more = metrics_of({names.METRIC_STEPS: 2.0, "other.metric": 9}, "v2", {"proposer": "n"})
    assert not (await scene.metrics.Export(more, timeout=WAIT_S)).HasField("partial_success")
    assert scene.reported.totals() == {"spec_steps": 7.0}
    assert scene.count("metric_points") == 3
    wrong = metrics_of({names.METRIC_STEPS: float("nan"), names.METRIC_RUNNING: -1})
    answer = await scene.metrics.Export(wrong, timeout=WAIT_S)
    assert answer.partial_success.rejected_data_points == 2
    assert scene.counts.dropped_by_reason() == {"range": 2}


def test_a_silent_verifier_runs_nothing() -> None:
    now = [0.0]
    reported = ReportedMetrics(max_series=3, clock=lambda: now[0])

    def add(values: dict[str, float], instance: str = "v1") -> None:
        assert all(reported.add(metrics_of(values, instance), lambda reason: None))

    add({names.METRIC_RUNNING: 4, names.METRIC_STEPS: 8})
    assert reported.totals() == {"requests.running": 4.0, "spec_steps": 8.0}
    now[0] = 100.0
    assert reported.totals() == {"spec_steps": 8.0}
    for i in range(9):
        add({names.METRIC_STEPS: 1}, f"v{i}")
    assert reported.totals() == {"spec_steps": 3.0}


async def test_an_address_that_is_taken_is_refused(scene: Scene, socket_address: str) -> None:
    other = Receiver(scene.intake, scene.counts)
    with pytest.raises(InputError, match=r"--otlp-listen: .* listens"):
        await other.start(socket_address)


async def test_the_socket_goes_with_the_receiver(scene: Scene, socket_address: str) -> None:
    path = Path(socket_address.removeprefix("unix:"))
    assert path.exists()
    await scene.receiver.stop()
    assert not path.exists()


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
)
ATTRIBUTES = st.dictionaries(NAMES, VALUES, max_size=12)
SPANS = st.builds(
    lambda name, trace, span, start, length, attributes, events: Span(
        name=name,
        trace_id=trace,
        span_id=span,
        start_time_unix_nano=start,
        end_time_unix_nano=min(start + length, 2**64 - 1),
        attributes=pairs(attributes),
        events=[Span.Event(name=n, attributes=pairs(a)) for n, a in events],
    ),
    NAMES,
    st.binary(min_size=15, max_size=17),
    st.binary(min_size=7, max_size=9),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32),
    ATTRIBUTES,
    st.lists(st.tuples(NAMES, ATTRIBUTES), max_size=3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SPANS, max_size=4), st.data())
def test_nothing_that_can_be_sent_breaks_it(spans: list[Span], data: st.DataObject) -> None:
    """Every span is taken, refused, known already or another's; sums that are taken are true."""
    told = record({"ngram": [(3, 1), (4, 4)]})
    changed = request_span(told, **data.draw(ATTRIBUTES))
    taken: list[RequestRecord] = []
    registry = CollectorRegistry()
    counts = EvidenceCounts(registry)
    made = Intake(counts, taken.append, reported=ReportedMetrics())
    sent = ExportTraceServiceRequest.FromString(export_of([*spans, changed]).SerializeToString())
    verdict = asyncio.run(made.traces(sent))
    assert verdict.rejected == sum(counts.dropped_by_reason().values())
    others = registry.get_sample_value("outrider:evidence_spans_total", {"kind": "other"}) or 0
    again = registry.get_sample_value("outrider:evidence_dropped_total", {"reason": "duplicate"})
    assert len(taken) + verdict.rejected + others + (again or 0) == len(spans) + 1
    for one in taken:
        assert one.sums.contradiction() == ""
        assert sum(share.sums.num_draft_tokens for share in one.proposers) == (
            one.sums.num_draft_tokens
        )
