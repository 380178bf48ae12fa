"""A soak's clients: whatever a server does becomes an answer that says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.soak_answers import Answer
from benchmarks.soak_clients import Clients
from benchmarks.soak_draw import Place, SoakRequest

CHUNK = {"choices": [{"index": 0, "text": "a", "finish_reason": None, "token_ids": [5]}]}
LAST = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
WHOLE = {
    "choices": [{"index": 0, "text": "abc", "finish_reason": "stop", "token_ids": [1]}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@dataclass
class Fake:
    """An HTTP server that sends the bytes it was told to and then waits or closes."""

    status: int = 200
    parts: list[bytes] = field(default_factory=list)
    then_wait: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {self.status} X\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        for part in self.parts:
            writer.write(part)
        await writer.drain()
        if self.then_wait:
            await reader.read()
            while await reader.read():
                pass
            self.left.set()
        writer.close()


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    made = Fake()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made


def events(*values: Any) -> list[bytes]:
    return [f"data: {json.dumps(value)}\n\n".encode() for value in values]


async def ask(fake: Fake, *, hang: float = 20.0, cancel: int | None = None, **body: Any) -> Answer:
    request = SoakRequest(1, Place.COMPLETIONS, {"prompt": "x", **body}, (), cancel_after=cancel)
    async with Clients(fake.url, "unix:/nowhere.sock", hang, 2) as clients:
        return await clients.send(request)


async def test_a_whole_answer(fake: Fake) -> None:
    fake.parts = [json.dumps(WHOLE).encode()]
    answer = await ask(fake)
    assert (answer.status, answer.broken, answer.left) == (200, "", False)
    assert (answer.choices[0].text, answer.choices[0].ids) == ("abc", [1])


async def test_a_refusal_names_its_field(fake: Fake) -> None:
    fake.status = 400
    fake.parts = [json.dumps({"error": {"message": "no", "param": "n"}}).encode()]
    for stream in (False, True):
        answer = await ask(fake, stream=stream)
        assert (answer.status, answer.param, answer.message) == (400, "n", "no")


async def test_a_whole_stream(fake: Fake) -> None:
    fake.parts = [*events(CHUNK, CHUNK, LAST), b"data: [DONE]\n\n"]
    answer = await ask(fake, stream=True)
    assert (answer.status, answer.broken) == (200, "")
    choice = answer.choices[0]
    assert (choice.text, choice.ids, choice.finish_reason) == ("aa", [5, 5], "length")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (events(CHUNK), "ended without [DONE]"),
        ([*events(CHUNK), b"data: {not json\n\n"], "malformed answer"),
        ([*events(CHUNK), b"event: x\n\n"], "not an event"),
        ([*events({"error": {"message": "died"}})], "the stream ended with"),
        (events({"choices": [{"text": "a"}]}), "malformed answer"),
        (events([1]), "an event is not an object"),
    ],
)
async def test_a_broken_stream_is_told(fake: Fake, parts: list[bytes], words: str) -> None:
    fake.parts = parts
    answer = await ask(fake, stream=True)
    assert words in answer.broken


async def test_an_answer_that_is_no_json_is_told(fake: Fake) -> None:
    fake.parts = [b"oops"]
    assert "malformed answer" in (await ask(fake)).broken


async def test_a_server_that_is_gone_is_told() -> None:
    answer = await ask(Fake(url="http://127.0.0.1:9"))
    assert "ConnectError" in answer.broken
    request = SoakRequest(1, Place.GRPC_TEXT, {"prompt": "x"}, ())
    async with Clients("http://127.0.0.1:9", "unix:/nowhere.sock", 20, 2) as clients:
        answer = await clients.send(request)
    assert answer.status == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_hangs_is_told(fake: Fake, stream: bool) -> None:
    fake.then_wait = True
    answer = await ask(fake, hang=0.2, stream=stream)
    assert answer.broken == "no end within 0.2 s"
    assert not answer.left


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_its_connection(fake: Fake, stream: bool) -> None:
    fake.parts = events(*[CHUNK] * 9) if stream else []
    fake.then_wait = True
    answer = await ask(fake, cancel=2, stream=stream)
    assert answer.left and not answer.broken
    if stream:
        assert answer.choices[0].text == "aaa"
    async with asyncio.timeout(20):
        await fake.left.wait()
