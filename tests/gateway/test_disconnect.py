"""A client that leaves: its generation is cancelled at once, whatever it was doing."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from gateway.server import RunningGateway
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier


async def send_and_leave(
    gateway: RunningGateway, verifier: FakeVerifier, *, stream: bool, after_text: bool = False
) -> None:
    """Post a request, wait until the verifier works on it, close the connection.

    `after_text` waits for the first text as well: what the gateway has counted is then known.
    """
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"model": MODEL, "prompt": "secret prompt", "stream": stream}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await writer.drain()
    await asyncio.wait_for(verifier.reached.wait(), 10)
    if after_text:
        await asyncio.wait_for(reader.readuntil(b"data: "), 10)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("rounds", [0, 2])
async def test_the_call_is_cancelled(
    gateway: RunningGateway,
    verifier: FakeVerifier,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    rounds: int,
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    verifier.script = lambda request: Answer(hang_after=rounds)
    await send_and_leave(gateway, verifier, stream=stream)
    await asyncio.wait_for(verifier.cancelled.wait(), 10)
    async with asyncio.timeout(10):
        while not caplog.records:
            await asyncio.sleep(0.01)
    (line,) = [record.getMessage() for record in caplog.records]
    assert " 499 " in line
    assert "client closed the connection" in line
    assert "secret" not in line


async def test_every_choice_is_cancelled(gateway: RunningGateway, verifier: FakeVerifier) -> None:
    verifier.script = lambda request: Answer(hang_after=1)
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"prompt": ["a", "b", "c"], "stream": True}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    async with asyncio.timeout(10):
        while verifier.hanging < 3:
            await asyncio.sleep(0.01)
        writer.close()
        while len(verifier.cancelled_ids) < 3:
            await asyncio.sleep(0.01)
    assert len(set(verifier.cancelled_ids)) == 3
