"""Requests as servers get them, and whatever can go wrong with an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from outrider.bench.client import Ask, Server, merged, request_body, root_url
from outrider.bench.records import Arrival, CountedBy, Record
from outrider.bench.samples import Backend, Sample
from outrider.errors import InputError, OperationError
from tests.outrider.bench.fake_server import DRAFTED, FakeServer, Script
from tests.outrider.bench.virtual import StreamingTransport, run

URL = "http://fake:1"
SAMPLE = Sample("s", "Say something.")
ASK = Ask(Backend.CHAT, 16, {"temperature": 0.0})


def ask_once(transport: httpx.AsyncBaseTransport, ask: Ask = ASK, **extra: Any) -> Record:
    async def once() -> Record:
        async with Server(URL, transport=transport) as server:
            return await server.record("toy", 3, SAMPLE, ask, extra)

    return run(once())


def answering(*responses: Any) -> httpx.AsyncBaseTransport:
    """Gives each response in turn, or raises it."""
    left = list(responses)

    def answer(request: httpx.Request) -> httpx.Response:
        response = left.pop(0)
        if isinstance(response, Exception):
            raise response
        assert isinstance(response, httpx.Response)
        return response

    return httpx.MockTransport(answer)


@pytest.mark.parametrize("backend", list(Backend))
def test_times_are_those_of_the_script(backend: Backend) -> None:
    fake = FakeServer()
    record = ask_once(StreamingTransport(fake.app), Ask(backend, 16))
    assert record.ok, record.error
    assert (record.index, record.sample, record.sent) == (3, "s", 0.0)
    assert record.arrivals == (Arrival(1.0, 1), Arrival(1.5, 3), Arrival(2.0, 2))
    assert (record.ttft, record.e2el) == (1.0, 2.0)
    assert record.tpot == pytest.approx(0.2)
    assert record.itls() == pytest.approx([0.5 / 3] * 3 + [0.25] * 2)
    assert record.counted_by is CountedBy.RUNNING_USAGE
    assert record.drafts is not None
    assert (record.drafts.steps, record.drafts.drafted, record.drafts.accepted) == (2, 8, 3)
    assert fake.paths == [backend.path]


def test_a_chat_request_says_what_it_must() -> None:
    fake = FakeServer()
    ask_once(StreamingTransport(fake.app), speculative_decoding={"enabled": False})
    assert fake.bodies == [
        {
            "model": "toy",
            "messages": [{"role": "user", "content": "Say something."}],
            "max_completion_tokens": 16,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "temperature": 0.0,
            "speculative_decoding": {"enabled": False},
        }
    ]


def test_a_completion_has_a_prompt_and_max_tokens() -> None:
    sample = Sample("s", "def f(", chat_text="Complete: def f(", output_len=9)
    body = request_body("m", 0, sample, Ask(Backend.COMPLETIONS, 16, running_usage=False), {})
    assert (body["prompt"], body["max_tokens"]) == ("def f(", 9)
    assert body["stream_options"] == {"include_usage": True}
    assert "seed" not in body


def test_each_prompt_has_its_own_seed_whichever_arm_asks() -> None:
    ask = Ask(Backend.CHAT, 16, seed=100)
    assert [request_body("m", i, SAMPLE, ask, {"x": i})["seed"] for i in (0, 5)] == [100, 105]


def test_bodies_are_merged_object_by_object() -> None:
    below = {"a": {"x": 1, "y": 2}, "b": 1}
    assert merged(below, {"a": {"y": 3}, "b": {"z": 1}}) == {"a": {"x": 1, "y": 3}, "b": {"z": 1}}
    assert below == {"a": {"x": 1, "y": 2}, "b": 1}


def test_an_http_error_is_kept_with_the_server_s_words() -> None:
    fake = FakeServer(script_of=lambda body: Script(status=429, error="too many"))
    record = ask_once(StreamingTransport(fake.app))
    assert (record.ok, record.error) == (False, "HTTP 429: too many")


def test_an_error_in_mid_stream_is_kept() -> None:
    fake = FakeServer(script_of=lambda body: Script(error="engine died"))
    assert ask_once(StreamingTransport(fake.app)).error == "engine died"


def test_an_answer_that_breaks_off_is_kept_as_failed() -> None:
    fake = FakeServer(script_of=lambda body: Script(break_off=True))
    assert "ended before" in ask_once(StreamingTransport(fake.app)).error


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (httpx.ReadTimeout(""), "timed out while waiting for the answer"),
        (httpx.ConnectTimeout(""), "timed out while connecting"),
        (httpx.RemoteProtocolError("peer closed"), "the server broke off the connection"),
        (httpx.ConnectError("Connection refused"), "connection refused"),
    ],
)
def test_a_failing_connection_is_told_in_words(failure: Exception, message: str) -> None:
    assert ask_once(answering(failure)).error == message


@pytest.mark.parametrize(
    "data", ["data: {oops\n\n", "data: 7\n\n", 'data: {"choices": [3]}\n\n', "data: \xff\n\n"]
)
def test_garbage_fails_its_request_only(data: str) -> None:
    response = httpx.Response(200, content=data.encode("latin-1"))
    assert ask_once(answering(response)).error.startswith("not a stream of answers")


def test_a_stream_is_read_while_it_comes() -> None:
    """A chunk is timed when it is there, not when the next one is."""

    class Body(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            import asyncio

            yield b'data: {"choices": [{"text": "a"}]}\n\n'
            await asyncio.sleep(7)
            yield b'data: {"choices": [{"text": "b", "finish_reason": "stop"}]}\n\n'

    record = ask_once(answering(httpx.Response(200, stream=Body())), Ask(Backend.COMPLETIONS, 4))
    assert [arrival.at for arrival in record.arrivals] == [0.0, 7.0]


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("https://h/v1/", "https://h"),
        ("http://h/openai/v1", "http://h/openai"),
    ],
)
def test_a_base_url_may_have_its_v1(given: str, root: str) -> None:
    assert root_url(given) == root


@pytest.mark.parametrize("given", ["localhost:8000", "", "ftp://h", "http://", "http://h:port"])
def test_what_is_no_url_is_refused(given: str) -> None:
    with pytest.raises(InputError, match="--base-url"):
        root_url(given)


def listed(transport: httpx.AsyncBaseTransport) -> Any:
    async def once() -> Any:
        async with Server(URL, transport=transport) as server:
            return await server.models()

    return run(once())


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.ConnectError("refused"), "cannot be reached: refused; start a server"),
        (httpx.Response(503, json={"error": {"message": "loading"}}), "HTTP 503: loading"),
        (httpx.Response(200, text="<html>"), "not JSON"),
        (httpx.Response(200, json=[]), "not an object"),
        (httpx.Response(200, json={"data": []}), "lists no model"),
    ],
)
def test_a_server_without_models_is_an_error_with_its_reason(response: Any, message: str) -> None:
    with pytest.raises(OperationError, match=message):
        listed(answering(response))


def test_counters_are_read_where_there_are_any() -> None:
    async def once(fake: FakeServer) -> Any:
        async with Server(URL, transport=StreamingTransport(fake.app)) as server:
            before = await server.draft_counters("toy")
            await server.record("toy", 0, SAMPLE, ASK, {})
            return before, await server.draft_counters("toy")

    before, after = run(once(FakeServer(counters=True)))
    assert (before.steps, after.steps) == (0, 2)
    assert after.since(before).accepted_per_position == (2, 1, 0, 0)
    assert run(once(FakeServer())) == (None, None)
    assert DRAFTED.steps == ((4, 2), (4, 1))


def test_a_metrics_page_that_is_none_is_no_error() -> None:
    async def once() -> Any:
        async with Server(URL, transport=answering(httpx.Response(200, text="{{{"))) as server:
            return await server.draft_counters("toy")

    assert run(once()) is None
