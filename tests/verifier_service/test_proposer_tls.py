"""A verifier's pool dials proposers with its credentials, and each side refuses strangers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider.credentials import PLAIN, Credentials
from proposer_service.server import start as start_proposer
from proposer_service.settings import ProposerSettings
from tests.certificates import Authority
from verifier_service.messages import QForm
from verifier_service.proposer_handshake import HelloParameters
from verifier_service.proposer_link import GrpcTransport
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState, ProposerState

HELLO = HelloParameters("v", "fingerprint", 100, (1,), 8, 4, 256, (QForm.ONE_HOT,))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@asynccontextmanager
async def proposer(listen: str, credentials: Credentials) -> AsyncIterator[str]:
    settings = ProposerSettings(listen=listen, method="ngram", credentials=credentials)
    running = await start_proposer(settings)
    try:
        yield running.address
    finally:
        await running.stop()


async def dialled(address: str, credentials: Credentials) -> ProposerState:
    """The proposer's state once it is connected, or a first attempt has failed."""
    pool = ProposerPool([address], HELLO, 1.0, transport=GrpcTransport(credentials))
    try:
        async with asyncio.timeout(20):
            while True:
                (state,) = pool.states()
                if state.state is LinkState.CONNECTED or state.detail:
                    return state
                await asyncio.sleep(0.01)
    finally:
        await asyncio.to_thread(pool.close)


async def test_a_verifier_with_the_right_certificate_is_served(
    authority: Authority, free_port: int
) -> None:
    own = authority.client(shows=authority.issue("verifier"))
    async with proposer(f"127.0.0.1:{free_port}", authority.server(mutual=True)) as address:
        assert (await dialled(address, own)).state is LinkState.CONNECTED


async def test_strangers_get_no_stream_and_do_no_harm(
    authority: Authority, free_port: int, tmp_path: Path
) -> None:
    own = authority.client(shows=authority.issue("verifier"))
    async with proposer(f"127.0.0.1:{free_port}", authority.server(mutual=True)) as address:
        for stranger in (PLAIN, authority.client(), Authority(tmp_path).client()):
            state = await dialled(address, stranger)
            assert state.state is LinkState.CONNECTING
            assert state.detail.startswith("UNAVAILABLE")
        assert (await dialled(address, own)).state is LinkState.CONNECTED


async def test_a_proposer_of_another_authority_is_not_told_of_prompts(
    authority: Authority, free_port: int, tmp_path: Path
) -> None:
    async with proposer(f"127.0.0.1:{free_port}", Authority(tmp_path).server()) as address:
        state = await dialled(address, authority.client())
        assert state.state is LinkState.CONNECTING and "UNAVAILABLE" in state.detail
    async with proposer(f"127.0.0.1:{free_port}", PLAIN) as address:
        assert (await dialled(address, authority.client())).state is LinkState.CONNECTING
