"""One request is one trace through all services, and its spans add up to what clients are told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider import telemetry as names
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from tests.collector import Collector, Span, collecting
from tests.interfaces.drafted_stack import drafted_stack
from tests.interfaces.stack import MODEL, Stack, stack
from tests.outrider.test_telemetry_page import GATEWAY, PROPOSE, REQUEST, told_in

TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT = "b7ad6b7169203331"
HEADERS = {
    "traceparent": f"00-{TRACE}-{CLIENT}-01",
    "x-outrider-workload": "test",
}
REPEATING = "the cat sat on the mat. the cat sat on the mat. the cat"


@pytest.fixture
def collector(socket_dir: Path) -> Iterator[Collector]:
    with collecting(f"unix:{socket_dir}/c.sock") as running:
        yield running


def traced(
    folder: Path, collector: Collector, *, proposer: bool = False, **options: Any
) -> AbstractAsyncContextManager[Stack]:
    """A stack whose every service sends to `collector`; with a real proposer where wanted."""
    level = options.pop("level", TraceLevel.SUMMARY)
    trace = TraceSettings(collector.address, level, **options)
    changes: dict[str, Any] = {"trace": trace, "gateway_options": {"trace": trace}}
    if not proposer:
        return stack(folder, **changes)
    return drafted_stack(folder, "ngram", {"prompt_lookup_min": 2, "trace": trace}, **changes)


def by_name(collector: Collector) -> dict[str, list[Span]]:
    kinds = (names.REQUEST_SPAN, names.PROPOSE_SPAN)
    return {
        "gateway": [span for span in collector.spans if span.name not in kinds],
        "verifier": collector.of(names.REQUEST_SPAN),
        "proposer": collector.of(names.PROPOSE_SPAN),
    }


async def test_one_trace_from_the_client_to_the_proposer(
    collector: Collector, socket_dir: Path
) -> None:
    async with traced(socket_dir, collector, proposer=True, level=TraceLevel.DETAILED) as running:
        body = {"prompt": REPEATING, "max_tokens": 24, "temperature": 0, "model": MODEL}
        response = await running.http.post("/v1/completions", json=body, headers=HEADERS)
        assert response.headers["x-trace-id"] == TRACE
    spans = by_name(collector)
    (gateway,), (verifier,), (proposer,) = spans["gateway"], spans["verifier"], spans["proposer"]
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert gateway.parent == CLIENT
    assert verifier.parent == gateway.span_id
    assert proposer.parent == verifier.span_id
    assert gateway.start_ns <= verifier.start_ns <= verifier.end_ns <= gateway.end_ns
    assert verifier.attributes[names.WORKLOAD] == "test"
    (event,) = verifier.events_of(names.PROPOSER_EVENT)
    assert (event.attributes[names.PROPOSER], event.attributes[names.METHOD]) == ("ngram", "ngram")
    assert event.attributes[names.DRAFT_TOKENS] == verifier.attributes[names.DRAFT_TOKENS] > 0
    assert proposer.attributes[names.DRAFT_TOKENS] >= verifier.attributes[names.DRAFT_TOKENS]
    assert_documented(spans)


async def test_content_and_failures_are_documented_too(
    collector: Collector, socket_dir: Path
) -> None:
    options: dict[str, Any] = {"level": TraceLevel.DETAILED, "content": True}
    async with traced(socket_dir, collector, **options) as running:
        for body in (
            {"prompt": "the cat", "max_tokens": 9, "seed": 1, "top_p": 0.9, "top_k": 5},
            {"prompt": "x" * 1000, "max_tokens": 9},
        ):
            await running.http.post("/v1/completions", json=body, headers=HEADERS)
        await running.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], "n": 0}
        )
    spans = by_name(collector)
    assert len(spans["gateway"]) == 3
    assert_documented(spans)
    (answered,) = [s for s in spans["verifier"] if names.STEPS in s.attributes]
    emitted = [
        text
        for event in answered.events_of(names.ROUND_EVENT)
        for text in event.attributes[names.ROUND_EMITTED_TEXTS]
    ]
    assert len(emitted) == answered.attributes[names.OUTPUT_TOKENS]


def assert_documented(spans: dict[str, list[Span]]) -> None:
    """Each span and event has what docs/telemetry.md tells of it, and nothing else."""
    for span in spans["gateway"]:
        assert set(span.attributes) <= told_in(GATEWAY)
    for span in spans["verifier"]:
        assert set(span.attributes) <= told_in(REQUEST)
        for event in span.events:
            assert set(event.attributes) <= told_in(f"Event `{event.name}`")
    for span in spans["proposer"]:
        assert set(span.attributes) == told_in(PROPOSE)


async def test_spans_add_up_to_answers_and_prometheus(
    collector: Collector, socket_dir: Path
) -> None:
    bodies = [
        {
            "prompt": ["the cat", REPEATING][: 1 + number % 2],
            "n": 1 + number % 3,
            "max_tokens": 5 + 7 * number,
            "temperature": 1.0,
            "seed": number,
            "stop": [" dog"] if number % 2 else [],
        }
        for number in range(8)
    ]
    async with traced(socket_dir, collector) as running:
        responses = await asyncio.gather(
            *(running.http.post("/v1/completions", json=body) for body in bodies)
        )
        metrics = (await running.http.get("/metrics")).text
    answers = [response.json() for response in responses]
    spans = by_name(collector)
    ids = {span.attributes[names.RESPONSE_ID]: span.span_id for span in spans["gateway"]}
    assert len(spans["verifier"]) == sum(len(answer["choices"]) for answer in answers)
    for response, answer in zip(responses, answers, strict=True):
        parent = ids[response.headers["x-request-id"]]
        parts = [span for span in spans["verifier"] if span.parent == parent]
        told = answer["metrics"]["speculative_decoding"]
        assert sum(part.attributes[names.STEPS] for part in parts) == told["num_spec_steps"]
        for mine, theirs in (
            (names.DRAFT_TOKENS, "num_draft_tokens"),
            (names.ACCEPTED_TOKENS, "num_accepted_draft_tokens"),
        ):
            assert sum(part.attributes[mine] for part in parts) == told[theirs]
        assert [
            sum(column)
            for column in zip(*(p.attributes[names.HISTOGRAM] for p in parts), strict=True)
        ] == told["acceptance_histogram"]
        emitted = sum(part.attributes[names.OUTPUT_TOKENS] for part in parts)
        assert emitted == answer["usage"]["completion_tokens"]
    totals = {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if "per_pos" not in sample.name
    }
    for name, metric in (
        (names.STEPS, "vllm:spec_decode_num_drafts_total"),
        (names.DRAFT_TOKENS, "vllm:spec_decode_num_draft_tokens_total"),
        (names.ACCEPTED_TOKENS, "vllm:spec_decode_num_accepted_tokens_total"),
        (names.OUTPUT_TOKENS, "vllm:generation_tokens_total"),
    ):
        assert sum(span.attributes[name] for span in spans["verifier"]) == totals[metric] > 0


async def test_half_of_the_requests_are_traced_by_all_or_by_none(
    collector: Collector, socket_dir: Path
) -> None:
    """The gateway decides by trace id; those below follow."""
    async with traced(socket_dir, collector, proposer=True, sample_ratio=0.5) as running:
        body = {"prompt": REPEATING, "max_tokens": 3, "temperature": 0}
        responses = [await running.http.post("/v1/completions", json=body) for _ in range(24)]
    spans = by_name(collector)
    shown = {r.headers["x-trace-id"] for r in responses if "x-trace-id" in r.headers}
    assert 0 < len(shown) < 24
    for kind in ("gateway", "verifier", "proposer"):
        assert {span.trace_id for span in spans[kind]} == shown
