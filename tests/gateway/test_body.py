"""Large, slow and broken bodies over the wire."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from gateway.server import RunningGateway
from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import MODEL, FakeVerifier

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def connect(
    gateway: RunningGateway,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, object]]:
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.lower().strip().split(b"\r\n")[1:])
        body = await reader.readexactly(int(fields[b"content-length"]))
    assert fields[b"connection"] == b"close"
    return int(head.split()[1]), json.loads(body)


async def test_announced_20_mb_are_refused_before_any_byte_is_read(
    gateway: RunningGateway,
) -> None:
    reader, writer = await connect(gateway)
    writer.write(HEAD + b"Content-Length: 20971520\r\n\r\n")
    status, body = await answer_of(reader)
    writer.close()
    assert status == 413
    assert "10485760 bytes" in str(body["error"])


async def test_unannounced_bytes_are_refused_at_the_limit_and_not_read_for_ever(
    gateway: RunningGateway,
) -> None:
    reader, writer = await connect(gateway)
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    answer = asyncio.create_task(answer_of(reader))
    sent = 0
    # A server that read everything would never end this.
    with pytest.raises(ConnectionError):
        while sent < 1000:
            writer.write(chunk)
            await writer.drain()
            sent += 1
    writer.close()
    assert (await answer)[0] == 413
    assert sent > 10


async def test_official_client_gets_an_answer_to_20_mb(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await client.completions.create(model=MODEL, prompt="x" * 20 * 1024 * 1024)
    assert caught.value.status_code == 413


async def test_the_next_request_works(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/completions", content=b"x" * 11 * 1024 * 1024)
    assert response.status_code == 413
    assert (await http.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_a_body_within_the_limit_is_taken(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    prompt = "x" * 9 * 1024 * 1024
    assert (await http.post("/v1/completions", json={"prompt": prompt})).status_code == 200
    assert len(verifier.requests[0].text) == len(prompt)


async def test_a_body_that_does_not_come_is_not_waited_for(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, body_timeout_s=0.1)
    reader, writer = await connect(gateway)
    writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
    status, body = await answer_of(reader)
    writer.close()
    assert status == 408
    assert "0.1 s" in str(body["error"])


async def test_a_client_that_leaves_in_mid_body_harms_nobody(
    gateway: RunningGateway, http: httpx.AsyncClient
) -> None:
    _, writer = await connect(gateway)
    writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await http.post("/v1/completions", json={"prompt": "x"})).status_code == 200
