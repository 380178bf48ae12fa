"""What a proposer tells of its open streams and sequences: what a leak would show in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from speculation.v1 import proposer_pb2

from proposer_service.server import RunningServer, start
from proposer_service.settings import ProposerSettings
from tests.proposer_service.verifier import WAIT_S, connected, opening, propose, step

TEXT = [1, 2, 3, 1, 2]


@pytest.fixture
async def server(socket_dir: Path) -> AsyncIterator[RunningServer]:
    running = await start(
        ProposerSettings(listen=f"unix:{socket_dir}/p.sock", method="ngram", prompt_lookup_min=2)
    )
    yield running
    await running.stop()


async def open_counts(server: RunningServer) -> tuple[int, int]:
    async with connected(server.address) as stub:
        answer = await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest())
    return answer.open_streams, answer.open_sequences


async def test_counts_follow_opens_closes_and_streams(server: RunningServer) -> None:
    assert await open_counts(server) == (0, 0)
    async with propose(server.address) as first, propose(server.address) as second:
        await first.greet(verifier_instance_id="one")
        await second.greet(verifier_instance_id="two")
        await first.ask(step(1, opening(1, TEXT), opening(2, TEXT)))
        await second.ask(step(1, opening(1, TEXT)))
        assert await open_counts(server) == (2, 3)
        await first.ask(step(2, closes=[(1, True)]))
        assert await open_counts(server) == (2, 2)
    async with asyncio.timeout(WAIT_S):
        while await open_counts(server) != (0, 0):
            await asyncio.sleep(0.01)
