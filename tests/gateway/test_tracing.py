"""The server span of a generation request, and what context its calls carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from gateway.server import RunningGateway
from outrider import telemetry as names
from outrider.telemetry import TraceLevel
from outrider.trace_settings import TraceSettings
from tests.collector import Collector, Span, collecting
from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CALLER}-01"
SERVER, OK, ERROR = 2, 0, 2


class NotingVerifier(FakeVerifier):
    """Knows the metadata of each Generate call."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.metadata: list[dict[str, Any]] = []

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.metadata.append(dict(context.invocation_metadata()))
        async for message in super().Generate(request, context):
            yield message


@pytest.fixture
async def verifier(socket_dir: Path) -> AsyncIterator[NotingVerifier]:
    fake = NotingVerifier(f"unix:{socket_dir}/verifier.sock")
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def collector(socket_dir: Path) -> Iterator[Collector]:
    with collecting(f"unix:{socket_dir}/c.sock") as running:
        yield running


@pytest.fixture
async def traced(
    collector: Collector, verifier: NotingVerifier, start_gateway: StartGateway
) -> RunningGateway:
    settings = TraceSettings(collector.address, TraceLevel.SUMMARY)
    return await start_gateway(verifier.address, trace=settings)


async def post(
    gateway: RunningGateway, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False) as http:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        return await http.post(path, json=body, headers=headers)


async def spans_after(gateway: RunningGateway, collector: Collector) -> list[Span]:
    """All spans; the gateway sends the last ones when it stops."""
    await gateway.stop()
    return collector.spans


async def test_a_completion(
    traced: RunningGateway, collector: Collector, verifier: NotingVerifier
) -> None:
    response = await post(
        traced,
        {"x-outrider-workload": "code"},
        prompt="a",
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        max_tokens=9,
        seed=5,
        request_id="mine",
    )
    (span,) = await spans_after(traced, collector)
    assert (span.name, span.kind, span.parent) == (f"text_completion {MODEL}", SERVER, "")
    assert response.headers["x-trace-id"] == span.trace_id
    assert span.resource["service.name"] == names.GATEWAY_SERVICE
    assert span.attributes == {
        names.OPERATION: "text_completion",
        names.PROVIDER: "outrider",
        names.HTTP_ROUTE: "/v1/completions",
        names.HTTP_STATUS: 200,
        names.REQUEST_MODEL: MODEL,
        names.RESPONSE_MODEL: MODEL,
        names.RESPONSE_ID: "mine",
        names.CHOICE_COUNT: 1,
        names.TEMPERATURE: 0.5,
        names.TOP_P: 0.9,
        names.TOP_K: 3,
        names.MAX_TOKENS: 9,
        names.SEED: 5,
        names.WORKLOAD: "code",
        names.SAMPLING_RATIO: 1.0,
        names.INPUT_TOKENS: response.json()["usage"]["prompt_tokens"],
        names.OUTPUT_TOKENS: response.json()["usage"]["completion_tokens"],
        names.FINISH_REASONS: ["stop"],
    }
    assert verifier.requests[0].workload == "code"


async def test_each_choice_is_called_below_the_requests_span(
    traced: RunningGateway, collector: Collector, verifier: NotingVerifier
) -> None:
    messages = [{"role": "user", "content": "a secret"}]
    headers = {"traceparent": PARENT, "tracestate": "vendor=1", "x-outrider-workload": "w"}
    response = await post(traced, headers, messages=messages, n=3, max_completion_tokens=7)
    (span,) = await spans_after(traced, collector)
    assert span.name == f"chat {MODEL}"
    assert (span.trace_id, span.parent) == (TRACE, CALLER)
    assert response.headers["x-trace-id"] == TRACE
    assert span.attributes[names.CHOICE_COUNT] == 3
    assert span.attributes[names.FINISH_REASONS] == ["stop"] * 3
    assert span.attributes[names.MAX_TOKENS] == 7
    assert span.attributes[names.INPUT_TOKENS] == response.json()["usage"]["prompt_tokens"]
    assert len(verifier.metadata) == 3
    for metadata in verifier.metadata:
        assert metadata["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
        assert metadata["tracestate"] == "vendor=1"
    assert {request.workload for request in verifier.requests} == {"w"}
    assert "secret" not in repr(collector.spans)


async def test_a_caller_that_is_not_traced_stays_so(
    traced: RunningGateway, collector: Collector, verifier: NotingVerifier
) -> None:
    """And the verifier learns it, whatever share it would take itself."""
    response = await post(traced, {"traceparent": f"00-{TRACE}-{CALLER}-00"}, prompt="a")
    assert "x-trace-id" not in response.headers
    assert await spans_after(traced, collector) == []
    (metadata,) = verifier.metadata
    assert metadata["traceparent"].startswith(f"00-{TRACE}-")
    assert metadata["traceparent"].endswith("-00")


async def test_a_malformed_context_begins_a_new_trace(
    traced: RunningGateway, collector: Collector
) -> None:
    response = await post(traced, {"traceparent": PARENT[:-1]}, prompt="a")
    assert response.status_code == 200
    (span,) = await spans_after(traced, collector)
    assert span.parent == "" and span.trace_id != TRACE


async def test_sampling_by_share(
    collector: Collector, verifier: NotingVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(
        verifier.address, trace=TraceSettings(collector.address, sample_ratio=0.0)
    )
    response = await post(gateway, prompt="a")
    assert "x-trace-id" not in response.headers
    await post(gateway, {"traceparent": PARENT}, prompt="a")
    (span,) = await spans_after(gateway, collector)
    assert span.trace_id == TRACE
    assert names.SAMPLING_RATIO not in span.attributes
    flags = [metadata["traceparent"][-2:] for metadata in verifier.metadata]
    assert [int(flag, 16) & 1 for flag in flags] == [0, 1]


@pytest.mark.parametrize("headers", [{}, {"traceparent": PARENT, "tracestate": "a=1"}])
async def test_a_gateway_that_traces_nothing_hands_the_context_on(
    verifier: NotingVerifier, start_gateway: StartGateway, headers: dict[str, str]
) -> None:
    response = await post(await start_gateway(verifier.address), headers, prompt="a")
    assert "x-trace-id" not in response.headers
    (metadata,) = verifier.metadata
    assert {k: v for k, v in metadata.items() if k.startswith("trace")} == headers


async def test_refused_requests_are_no_errors_of_the_server(
    traced: RunningGateway, collector: Collector
) -> None:
    response = await post(traced, prompt=3)
    assert response.status_code == 400
    assert response.headers["x-trace-id"]
    (span,) = await spans_after(traced, collector)
    assert span.name == "text_completion"
    assert span.attributes[names.HTTP_STATUS] == 400
    assert names.ERROR_TYPE not in span.attributes
    assert span.status == OK


async def test_a_verifier_that_fails_is_an_error(
    traced: RunningGateway, collector: Collector, verifier: NotingVerifier
) -> None:
    verifier.script = lambda request: Answer(status=grpc.StatusCode.INTERNAL, message="broken")
    response = await post(traced, prompt="a")
    (span,) = await spans_after(traced, collector)
    assert span.attributes[names.HTTP_STATUS] == response.status_code == 500
    assert span.attributes[names.ERROR_TYPE] == response.json()["error"]["type"]
    assert span.attributes[names.FINISH_REASONS] == ["error"]
    assert span.status == ERROR
    assert span.message == ""


async def test_a_stream_that_breaks_is_an_error_though_its_status_was_sent(
    traced: RunningGateway, collector: Collector, verifier: NotingVerifier
) -> None:
    verifier.script = lambda request: Answer(status=grpc.StatusCode.INTERNAL, fail_after=1)
    response = await post(traced, prompt="a", stream=True)
    assert '"error"' in response.text
    (span,) = await spans_after(traced, collector)
    assert span.attributes[names.HTTP_STATUS] == 200
    assert span.attributes[names.ERROR_TYPE]
    assert span.attributes[names.OUTPUT_TOKENS] == 3
    assert span.status == ERROR


async def test_a_client_that_leaves_is_no_error(
    traced: RunningGateway, collector: Collector, verifier: NotingVerifier
) -> None:
    verifier.script = lambda request: Answer(hang_after=1)
    async with httpx.AsyncClient(base_url=traced.url, timeout=30, trust_env=False) as http:
        body = {"prompt": "a", "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            await anext(response.aiter_lines())
    async with asyncio.timeout(20):
        await verifier.cancelled.wait()
    (span,) = await spans_after(traced, collector)
    assert span.attributes[names.FINISH_REASONS] == ["abort"]
    assert span.attributes[names.HTTP_STATUS] == 499
    assert span.status == OK


async def test_length_is_told_as_the_client_was(
    traced: RunningGateway, collector: Collector, verifier: NotingVerifier
) -> None:
    verifier.script = lambda request: Answer(reason=types_pb2.FINISH_REASON_LENGTH)
    await post(traced, prompt=["a", "b"])
    (span,) = await spans_after(traced, collector)
    assert span.attributes[names.FINISH_REASONS] == ["length", "length"]
    assert span.attributes[names.CHOICE_COUNT] == 1


async def test_a_stream_is_told(traced: RunningGateway, collector: Collector) -> None:
    for stream in (True, False):
        await post(traced, prompt="a", stream=stream)
    spans = await spans_after(traced, collector)
    assert [span.attributes.get(names.STREAM) for span in spans] == [True, None]


async def test_only_generations_are_traced(traced: RunningGateway, collector: Collector) -> None:
    async with httpx.AsyncClient(base_url=traced.url, trust_env=False) as http:
        for path in ("/health", "/metrics", "/v1/models", "/nowhere"):
            assert "x-trace-id" not in (await http.get(path)).headers
    assert await spans_after(traced, collector) == []


@pytest.mark.parametrize("label", ["two words", "x" * 65, "-x"])
async def test_a_workload_that_is_no_label_is_refused_by_name(
    traced: RunningGateway, verifier: NotingVerifier, label: str
) -> None:
    response = await post(traced, {"x-outrider-workload": label}, prompt="a")
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == "x-outrider-workload"
    assert "allowed: 1 to 64 letters" in error["message"]
    assert verifier.requests == []


async def test_a_workload_comes_once(traced: RunningGateway) -> None:
    async with httpx.AsyncClient(base_url=traced.url, trust_env=False) as http:
        headers = [("x-outrider-workload", "a"), ("x-outrider-workload", "b")]
        response = await http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    assert response.status_code == 400
    assert "2 times" in response.json()["error"]["message"]
