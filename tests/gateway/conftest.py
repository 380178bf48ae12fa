"""A gateway over one fake verifier, and the official client against it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.server import RunningGateway, start
from gateway.settings import GatewaySettings
from tests.gateway.fake_verifier import FakeVerifier

StartGateway = Callable[..., Awaitable[RunningGateway]]


@pytest.fixture
def socket_dir() -> Any:
    # pytest's own temporary folders may be too long for a socket's path.
    path = Path(tempfile.mkdtemp(prefix="outrider-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def verifier(socket_dir: Path) -> AsyncIterator[FakeVerifier]:
    fake = FakeVerifier(f"unix:{socket_dir}/verifier.sock")
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def start_gateway() -> AsyncIterator[StartGateway]:
    """Starts gateways with quick settings; stops them in the end."""
    running: list[RunningGateway] = []

    async def start_one(*verifiers: str, **options: Any) -> RunningGateway:
        settings = GatewaySettings(
            port=0,
            verifiers=verifiers,
            connect_timeout_s=2.0,
            poll_interval_s=0.05,
            drain_timeout_s=0.0,
        )
        gateway = await start(replace(settings, **options))
        running.append(gateway)
        return gateway

    yield start_one
    for gateway in running:
        await gateway.stop()


@pytest.fixture
async def gateway(verifier: FakeVerifier, start_gateway: StartGateway) -> RunningGateway:
    return await start_gateway(verifier.address)


@pytest.fixture
async def http(gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=gateway.url, timeout=30, trust_env=False, verify=False
    ) as client:
        yield client


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(gateway) as instance:
        yield instance


def client_of(gateway: RunningGateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=gateway.url + "/v1",
        api_key="none",
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False, verify=False),
    )
