from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outrider.trace_context import NO_CONTEXT, TraceContext, read_context

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_context_is_read_from_headers_and_handed_on_as_it_came() -> None:
    headers = [("host", "x"), ("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]
    context = read_context(headers)
    assert context.metadata() == (("traceparent", PARENT), ("tracestate", "a=1,b=2"))
    assert context.sampled
    assert context.trace_id == TRACE


def test_metadata_may_be_bytes() -> None:
    assert read_context([("traceparent", PARENT.encode())]).traceparent == PARENT


@pytest.mark.parametrize("flags", ["00", "02", "fe"])
def test_a_caller_that_does_not_record_is_not_sampled(flags: str) -> None:
    assert not read_context([("traceparent", f"00-{TRACE}-{SPAN}-{flags}")]).sampled


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "garbage",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" {PARENT}",
        f"01-{TRACE}-{SPAN}-01-{'x' * 300}",
        f"{PARENT}\n",
    ],
)
def test_what_is_malformed_counts_as_absent(parent: str) -> None:
    assert read_context([("traceparent", parent), ("tracestate", "a=1")]) == NO_CONTEXT


def test_a_later_version_may_say_more() -> None:
    assert read_context([("traceparent", f"01-{TRACE}-{SPAN}-01-more")]).trace_id == TRACE


def test_two_parents_are_none() -> None:
    assert read_context([("traceparent", PARENT), ("traceparent", PARENT)]) == NO_CONTEXT


@pytest.mark.parametrize("state", ["x" * 513, "a=\x00", "a=é"])
def test_a_state_that_is_too_long_or_no_text_is_left_out(state: str) -> None:
    assert read_context([("traceparent", PARENT), ("tracestate", state)]) == TraceContext(PARENT)


def test_no_context_is_no_metadata() -> None:
    assert NO_CONTEXT.metadata() == ()
    assert NO_CONTEXT.trace_id == ""
    assert not NO_CONTEXT.sampled


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")))
def test_it_agrees_with_opentelemetry(parent: str) -> None:
    """Whatever comes; OpenTelemetry forgives spaces around it, which is no header's business."""
    context = read_context([("traceparent", parent)])
    carrier = {"traceparent": parent}
    span = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    if parent == parent.strip():
        assert bool(context.traceparent) == span.is_valid
    if context.traceparent:
        assert context.trace_id == f"{span.trace_id:032x}"
        assert context.sampled == span.trace_flags.sampled
