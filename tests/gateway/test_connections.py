"""Connections that stall, flood or break the protocol, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.connections import DEFAULT_LIMITS, BoundedProtocol, ConnectionLimits
from gateway.server import RunningGateway
from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import Answer, FakeVerifier

GET = b"GET /version HTTP/1.1\r\nHost: x\r\n"


def limits(**changes: Any) -> ConnectionLimits:
    return replace(DEFAULT_LIMITS, **changes)


async def connect(gateway: RunningGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and error message of the answer that ends a connection."""
    async with asyncio.timeout(10):
        raw = await reader.read()
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["message"]


async def refusal(gateway: RunningGateway, raw: bytes) -> tuple[int, str]:
    reader, writer = await connect(gateway)
    writer.write(raw)
    try:
        return await answer(reader)
    finally:
        writer.close()


@pytest.mark.parametrize("begun", [b"", b"GET /ver", GET])
async def test_a_head_that_does_not_come_is_not_waited_for(
    verifier: FakeVerifier, start_gateway: StartGateway, begun: bytes
) -> None:
    gateway = await start_gateway(verifier.address, connections=limits(head_timeout_s=0.05))
    status, message = await refusal(gateway, begun)
    assert (status, message) == (408, "the request's head did not arrive within 0.05 s")


async def test_a_second_head_is_not_waited_for_either(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, connections=limits(head_timeout_s=0.05))
    reader, writer = await connect(gateway)
    writer.write(GET + b"\r\n")
    async with asyncio.timeout(10):
        first = await reader.readuntil(b"}")
    assert first.startswith(b"HTTP/1.1 200")
    writer.write(b"GET ")
    assert (await answer(reader))[0] == 408
    writer.close()


async def test_a_request_in_time_may_take_longer_than_its_head(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, connections=limits(head_timeout_s=0.05))
    verifier.script = lambda request: Answer(wait_after=1)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        running = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
        await asyncio.wait_for(verifier.reached.wait(), 10)
        await asyncio.sleep(0.1)
        verifier.release.set()
        assert (await running).status_code == 200
        # Idle in between, the connection is kept.
        await asyncio.sleep(0.1)
        assert (await http.get("/version")).status_code == 200


async def test_heads_that_are_too_large_are_refused_with_the_limit(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(
        verifier.address, connections=limits(max_head_bytes=4096, max_headers=10)
    )
    endless = GET + b"X-A: " + b"a" * 300_000
    assert await refusal(gateway, endless) == (431, "the request's head is above 4096 bytes")
    # Complete before anybody looked.
    status, message = await refusal(gateway, GET + b"X-A: " + b"a" * 5000 + b"\r\n\r\n")
    assert status == 431 and message.endswith("4096 are allowed")
    status, message = await refusal(gateway, GET + b"X-A: a\r\n" * 10 + b"\r\n")
    assert (status, message) == (431, "the request has 11 headers; 10 are allowed")
    long_path = b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await refusal(gateway, long_path))[0] == 431


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\nbad header\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_told_so(gateway: RunningGateway, raw: bytes) -> None:
    assert await refusal(gateway, raw) == (400, "this is not a valid HTTP/1.1 request")


async def test_connections_beyond_the_most_are_told_so(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, connections=limits(max_connections=2))
    held = [await connect(gateway) for _ in range(2)]
    for reader, writer in held:
        writer.write(GET + b"\r\n")
        assert b"200" in await asyncio.wait_for(reader.readline(), 10)
    status, message = await refusal(gateway, b"")
    assert (status, message) == (503, "this server has 2 connections already")
    for _, writer in held:
        writer.close()
    async with asyncio.timeout(10), httpx.AsyncClient(trust_env=False) as http:
        while True:
            try:
                if (await http.get(gateway.url + "/version")).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.01)


async def test_a_client_that_reads_nothing_is_cut() -> None:
    gone = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        watching = asyncio.create_task(watch())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.is_set():
            await send({"type": "http.response.body", "body": bytes(2**20), "more_body": True})
        await watching

    async with served(endless, limits(write_timeout_s=0.05)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"\r\n")
        await asyncio.wait_for(gone.wait(), 30)
        writer.close()


async def test_a_broken_body_after_a_good_head_harms_nobody(
    gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    broken = head + b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n"
    assert (await refusal(gateway, broken))[0] == 400
    assert (await http.get("/version")).status_code == 200


@settings(deadline=None, max_examples=60)
@given(raw=st.lists(st.binary(max_size=200), max_size=4), tail=st.sampled_from([b"", b"\r\n\r\n"]))
def test_no_bytes_end_the_server(raw: list[bytes], tail: bytes) -> None:
    """Whatever comes, in whatever pieces, is answered, waited for or closed: never an exception."""
    asyncio.run(_feed([*raw, tail]))


async def _feed(chunks: list[bytes]) -> None:
    failures: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    async with served(Starlette(), limits(head_timeout_s=5)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0)
        writer.write_eof()
        async with asyncio.timeout(10):
            received = await reader.read()
        writer.close()
    assert received == b"" or received.startswith(b"HTTP/1.1 ")
    assert failures == []


@asynccontextmanager
async def served(app: ASGIApp, bounds: ConnectionLimits) -> AsyncIterator[int]:
    """The port of an application behind bounded connections, and nothing else."""
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedProtocol(config, state, {}, bounds), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_flood_beyond_the_most_is_not_even_told_so(
    verifier: FakeVerifier, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.connections._MOST_REFUSED", 1)
    gateway = await start_gateway(verifier.address, connections=limits(max_connections=1))
    kept, refused, cut = [await connect(gateway) for _ in range(3)]
    assert await answer(refused[0]) == (503, "this server has 1 connections already")
    raw = b""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            raw = await cut[0].read()
    assert raw == b""
    for _, writer in (kept, refused, cut):
        writer.close()
