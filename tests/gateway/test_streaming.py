"""Streamed answers: events, their order, their framing, and how they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import httpx
import openai
import pytest
from speculation.v1 import types_pb2

from tests.gateway.conftest import StartGateway, client_of
from tests.gateway.fake_verifier import EOS, MODEL, Answer, FakeVerifier

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
COMPLETION = {"model": MODEL, "prompt": "Hi", "stream": True}


async def raw_events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """The payloads of a streamed answer; fails on any byte that is not framing."""
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    frames = response.content.split(b"\n\n")
    assert frames.pop() == b""
    assert all(f.startswith(b"data: ") and b"\n" not in f and b"\r" not in f for f in frames)
    return [f.removeprefix(b"data: ").decode() for f in frames]


async def events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    payloads = await raw_events(http, path, body)
    assert payloads.pop() == "[DONE]"
    return [json.loads(p) for p in payloads]


async def test_completion_chunks(http: httpx.AsyncClient) -> None:
    chunks = await events(http, "/v1/completions", COMPLETION)
    assert [c["choices"][0]["text"] for c in chunks] == ["Hel", "lo", "!", ""]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    assert not any("usage" in c or "metrics" in c for c in chunks)


async def test_chat_chunks_begin_with_the_role(http: httpx.AsyncClient) -> None:
    chunks = await events(http, "/v1/chat/completions", CHAT)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": "!"},
        {},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}


async def test_usage_chunk_carries_metrics(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 6
    assert last.model_extra["metrics"] == {
        "speculative_decoding": {
            "mean_acceptance_length": 2.5,
            "draft_acceptance_rate": 0.5,
            "acceptance_histogram": [0, 1, 1, 0, 0],
            "num_spec_steps": 2,
            "num_accepted_draft_tokens": 3,
            "num_draft_tokens": 6,
            "num_spec_tokens": 4,
        }
    }
    assert all(chunk.usage is None for chunk in chunks[:-1])
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == "Hello!"


async def test_usage_and_metrics_equal_those_of_the_whole_answer(http: httpx.AsyncClient) -> None:
    whole = (await http.post("/v1/completions", json={**COMPLETION, "stream": False})).json()
    body = {**COMPLETION, "stream_options": {"include_usage": True}}
    last = (await events(http, "/v1/completions", body))[-1]
    assert last["usage"] == whole["usage"]
    assert last["metrics"]["speculative_decoding"] == whole["metrics"]["speculative_decoding"]


async def test_continuous_usage_counts_up(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await events(http, "/v1/completions", {**COMPLETION, "stream_options": options})
    assert [c["usage"]["completion_tokens"] for c in chunks] == [3, 5, 6, 6, 6]
    assert all(c["usage"]["prompt_tokens"] == 2 for c in chunks)


async def test_usage_can_be_forced_by_the_operator(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, force_include_usage=True)
    async with client_of(gateway) as client:
        stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert all(chunk.usage is not None for chunk in chunks)


async def test_choices_of_a_stream_keep_their_own_order(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(pieces=[(c, 0) for c in request.text])
    prompts = ["abcdef", "12", "XYZ"]
    stream = await client.completions.create(model=MODEL, prompt=prompts, stream=True)
    texts, finished = ["", "", ""], []
    async for chunk in stream:
        (choice,) = chunk.choices
        assert choice.index not in finished
        texts[choice.index] += choice.text
        if choice.finish_reason:
            finished.append(choice.index)
    assert texts == prompts
    assert sorted(finished) == [0, 1, 2]


async def test_many_choices_more_than_the_buffer_holds(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(pieces=[("x", 0)] * 20)
    stream = await client.completions.create(model=MODEL, prompt=["p"] * 20, stream=True)
    total = ""
    async for chunk in stream:
        total += chunk.choices[0].text
    assert total == "x" * 400


async def test_token_ids_in_a_stream(http: httpx.AsyncClient) -> None:
    chunks = await events(http, "/v1/completions", {**COMPLETION, "return_token_ids": True})
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [EOS, 72, 105]
    ids = [i for c in chunks[:-1] for i in c["choices"][0]["token_ids"]]
    assert ids == [ord(c) for c in "Hello!"]
    chunks = await events(http, "/v1/chat/completions", {**CHAT, "return_token_ids": True})
    assert chunks[0]["prompt_token_ids"] == [ord(c) for c in "user:Hi;"]


async def test_echo_comes_first(http: httpx.AsyncClient) -> None:
    chunks = await events(http, "/v1/completions", {**COMPLETION, "echo": True})
    assert [c["choices"][0]["text"] for c in chunks] == ["Hi", "Hel", "lo", "!", ""]


async def test_deltas_without_text_send_no_event(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(pieces=[("a", 0), ("", 0), ("b", 0)])
    chunks = await events(http, "/v1/completions", COMPLETION)
    assert [c["choices"][0]["text"] for c in chunks] == ["a", "b", ""]


@pytest.mark.parametrize("text", ["你好 🚀", "\u2028\u2029\x85", "\r\n\n\x00\x1c", '"\\'])
async def test_any_text_stays_one_line(
    http: httpx.AsyncClient, verifier: FakeVerifier, text: str
) -> None:
    verifier.script = lambda request: Answer(pieces=[(text, 0)])
    payloads = await raw_events(http, "/v1/completions", COMPLETION)
    assert json.loads(payloads[0])["choices"][0]["text"] == text
    assert len(payloads[0].splitlines()) == 1


async def test_text_arrives_while_the_verifier_still_decodes(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(wait_after=1)
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    first = await anext(aiter(stream))
    assert first.choices[0].text == "Hel"
    verifier.release.set()
    assert "".join([c.choices[0].text async for c in stream]) == "lo!"


async def test_refusal_before_the_first_event_is_a_plain_error(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(
        status=grpc.StatusCode.INVALID_ARGUMENT, message="prompt: too long"
    )
    response = await http.post("/v1/completions", json=COMPLETION)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "prompt: too long"


async def test_one_bad_prompt_of_several_refuses_the_request(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    bad = Answer(status=grpc.StatusCode.INVALID_ARGUMENT, message="prompt: too long")
    verifier.script = lambda request: bad if request.text == "bad" else Answer(start_late=True)
    response = await http.post("/v1/completions", json={**COMPLETION, "prompt": ["ok", "bad"]})
    assert response.status_code == 400
    await asyncio.wait_for(verifier.cancelled.wait(), 10)


async def test_a_late_refusal_of_one_choice_is_still_a_status(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    bad = Answer(
        status=grpc.StatusCode.INVALID_ARGUMENT, message="prompt: too long", start_late=True
    )
    verifier.script = lambda request: bad if request.text == "bad" else Answer(hang_after=1)
    body = {**COMPLETION, "prompt": ["ok", "bad"]}
    asked = asyncio.create_task(http.post("/v1/completions", json=body))
    async with asyncio.timeout(10):
        while not (verifier.hanging and verifier.reached.is_set() and len(verifier.requests) == 2):
            await asyncio.sleep(0.005)
    # Answers that the gateway gives later than it has seen the first choice begin.
    for _ in range(5):
        await http.get("/health")
    verifier.release.set()
    response = await asyncio.wait_for(asked, 10)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "prompt: too long"


async def test_a_verifier_that_does_not_tell_is_waited_for_until_it_begins(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(tell_accepted=False)
    chunks = await events(http, "/v1/completions", {**COMPLETION, "prompt": ["a", "b"]})
    assert {c["choices"][0]["index"] for c in chunks if c["choices"]} == {0, 1}


async def test_choices_that_start_late_do_not_hold_back_the_others(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(start_late=request.text == "late")
    stream = await client.completions.create(model=MODEL, prompt=["now", "late"], stream=True)
    texts, finished = ["", ""], []
    async for chunk in stream:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason:
            finished.append(choice.index)
            # Only now may the second one begin.
            verifier.release.set()
    assert texts == ["Hello!", "Hello!"]
    assert finished == [0, 1]


async def test_each_choice_of_a_chat_begins_with_the_role(http: httpx.AsyncClient) -> None:
    chunks = await events(http, "/v1/chat/completions", {**CHAT, "n": 3})
    for index in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert own[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer(status=grpc.StatusCode.UNAVAILABLE, message="dying", fail_after=1), 503),
        (Answer(status=grpc.StatusCode.CANCELLED, message="stopped", fail_after=1), 503),
        (Answer(status=grpc.StatusCode.INTERNAL, message="secret path", fail_after=1), 500),
        (Answer(reason=types_pb2.FINISH_REASON_ABORT), 503),
        (Answer(truncate=True), 503),
    ],
)
async def test_failure_in_mid_stream_is_an_event_and_the_end(
    http: httpx.AsyncClient, verifier: FakeVerifier, answer: Answer, code: int
) -> None:
    verifier.script = lambda request: answer
    payloads = await raw_events(http, "/v1/chat/completions", CHAT)
    error = json.loads(payloads[-1])["error"]
    assert error["code"] == code
    assert "secret" not in error["message"]
    assert "[DONE]" not in payloads


async def test_official_client_raises_on_the_error_event(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(
        status=grpc.StatusCode.UNAVAILABLE, message="dying", fail_after=1
    )
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
    seen = []
    with pytest.raises(openai.APIError, match="not available"):
        async for chunk in stream:
            seen.append(chunk.choices[0].text)  # noqa: PERF401
    assert seen == ["Hel"]


async def test_failure_of_one_choice_ends_the_others(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    dying = Answer(status=grpc.StatusCode.UNAVAILABLE, message="dying", fail_after=1)
    verifier.script = lambda request: dying if request.text == "bad" else Answer(hang_after=1)
    payloads = await raw_events(http, "/v1/completions", {**COMPLETION, "prompt": ["ok", "bad"]})
    assert json.loads(payloads[-1])["error"]["code"] == 503
    await asyncio.wait_for(verifier.cancelled.wait(), 10)


async def test_time_limit_ends_a_stream(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, request_timeout_s=0.3)
    verifier.script = lambda request: Answer(hang_after=1)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        payloads = await raw_events(http, "/v1/completions", COMPLETION)
        assert json.loads(payloads[-1])["error"]["code"] == 504
        response = await http.post("/v1/completions", json={**COMPLETION, "stream": False})
        assert response.status_code == 504
    await asyncio.wait_for(verifier.cancelled.wait(), 10)
