"""One process's telemetry against a collector that comes, goes, hangs and refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.metrics import Observation
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outrider.trace_settings import TraceSettings
from outrider.tracing import MAX_EVENTS, Telemetry
from tests.collector import WAIT_S, Collector, collecting, until

SPAN_ID = "b7ad6b7169203331"


@pytest.fixture
def collector(socket_dir: Path) -> Iterator[Collector]:
    with collecting(f"unix:{socket_dir}/c.sock") as running:
        yield running


@contextmanager
def telemetry(address: str, ratio: float = 1.0) -> Iterator[Telemetry]:
    one = Telemetry(
        TraceSettings(address, sample_ratio=ratio),
        "outrider-test",
        "instance-1",
        delay_ms=5,
        metrics_interval_ms=20,
    )
    try:
        yield one
    finally:
        one.shutdown(5.0)


def caller(trace_id: int, flags: str) -> Context:
    parent = f"00-{trace_id:032x}-{SPAN_ID}-{flags}"
    return TraceContextTextMapPropagator().extract({"traceparent": parent})


def trace_id(span: Span) -> str:
    return f"{span.get_span_context().trace_id:032x}"


def test_a_span_says_who_sent_it(collector: Collector) -> None:
    with telemetry(collector.address) as one:
        one.tracer.start_span("a", attributes={"n": 1}).end()
    (span,) = collector.spans
    assert span.attributes == {"n": 1}
    assert span.resource["service.name"] == "outrider-test"
    assert span.resource["service.instance.id"] == "instance-1"
    assert span.resource["service.version"] == metadata.version("outrider")
    assert span.scope == "outrider"


def test_spans_come_by_themselves(collector: Collector) -> None:
    with telemetry(collector.address) as one:
        one.tracer.start_span("a").end()
        collector.wait_for("a")


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_none_or_all_are_sampled(collector: Collector, ratio: float) -> None:
    with telemetry(collector.address, ratio) as one:
        for _ in range(50):
            one.tracer.start_span("a").end()
    assert len(collector.spans) == 50 * ratio


def test_half_of_the_traces_are_sampled_and_always_the_same_ones(collector: Collector) -> None:
    """By trace id: whatever process decides, it decides alike."""
    with telemetry(collector.address, 0.5) as one:
        spans = [one.tracer.start_span("first") for _ in range(400)]
        for span in spans:
            span.end()
        kept = {trace_id(s) for s in spans if s.get_span_context().trace_flags.sampled}
    assert {span.trace_id for span in collector.spans} == kept
    assert 120 < len(kept) < 280
    # The ratio's bound is on the lower 64 bits.
    assert kept == {t for t in map(trace_id, spans) if int(t[16:], 16) < 2**63}


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_a_callers_decision_stands(collector: Collector, ratio: float) -> None:
    with telemetry(collector.address, ratio) as one:
        for number in range(1, 21):
            one.tracer.start_span("wanted", context=caller(number, "01")).end()
            one.tracer.start_span("unwanted", context=caller(number, "00")).end()
    assert collector.names() == ["wanted"] * 20
    assert {span.parent for span in collector.spans} == {SPAN_ID}
    assert [int(span.trace_id, 16) for span in collector.spans] == list(range(1, 21))


def test_a_request_of_thousands_of_rounds_is_told_whole(collector: Collector) -> None:
    with telemetry(collector.address) as one:
        span = one.tracer.start_span("a")
        for number in range(MAX_EVENTS):
            span.add_event("round", {"number": number})
        span.end()
    (told,) = collector.spans
    assert [event.attributes["number"] for event in told.events] == list(range(MAX_EVENTS))
    assert max(collector.sizes) < 4 * 1024 * 1024


def test_a_collector_that_is_killed_and_started_again_misses_nothing(
    collector: Collector,
) -> None:
    with telemetry(collector.address) as one:
        one.tracer.start_span("before").end()
        # Until it was answered: what is not, is sent again.
        one.flush()
        collector.kill()
        for _ in range(20):
            one.tracer.start_span("while it was away").end()
        collector.start()
        one.tracer.start_span("after").end()
        collector.wait_for("after")
        assert one.dropped == 0
    assert collector.names() == ["before", *["while it was away"] * 20, "after"]


def test_the_end_waits_for_nobody_who_is_away(socket_dir: Path) -> None:
    one = Telemetry(TraceSettings(f"unix:{socket_dir}/nobody.sock"), "s", "i")
    for _ in range(1000):
        one.tracer.start_span("a").end()
    one.meter()
    ending = threading.Thread(target=one.shutdown, args=(3600.0,), daemon=True)
    ending.start()
    ending.join(WAIT_S)
    assert not ending.is_alive()


def test_the_end_waits_for_a_collector_that_hangs_only_so_long(collector: Collector) -> None:
    collector.hold = threading.Event()
    with telemetry(collector.address) as one:
        one.tracer.start_span("a").end()
        collector.wait(lambda: collector.calls == 1)
        one.shutdown(0.05)
        assert not collector.spans
        collector.hold.set()


def test_the_end_sends_what_waits(collector: Collector) -> None:
    one = Telemetry(TraceSettings(collector.address), "s", "i", delay_ms=3_600_000)
    for _ in range(5):
        one.tracer.start_span("a").end()
    one.shutdown()
    one.shutdown()
    assert collector.names() == ["a"] * 5


def test_a_collector_that_refuses_harms_nobody(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.refuse = grpc.StatusCode.PERMISSION_DENIED
    with telemetry(collector.address) as one:
        for _ in range(3):
            one.tracer.start_span("a").end()
            one.flush()
    assert len([r for r in caplog.records if "PERMISSION_DENIED" in r.getMessage()]) == 1


def test_metrics_are_cumulative(collector: Collector) -> None:
    totals = [3]
    with telemetry(collector.address) as one:
        one.meter().create_observable_counter(
            "m", [lambda options: [Observation(totals[-1], {"k": "v"})]]
        )
        collector.wait(lambda: collector.point("m", k="v") == 3)
        totals.append(8)
        collector.wait(lambda: collector.point("m", k="v") == 8)
    assert collector.metric_resources[0]["service.name"] == "outrider-test"


def test_the_sdk_logs_nothing_of_its_own(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its exporters would log each failed try."""
    with telemetry(f"unix:{socket_dir}/nobody.sock") as one:
        one.meter()
        one.tracer.start_span("a").end()
        until(lambda: bool(caplog.records))
    assert {record.name for record in caplog.records} == {"outrider.otlp"}
    away, in_all = [record.getMessage() for record in caplog.records]
    assert "UNAVAILABLE" in away
    assert "spans lost: 1" in in_all
