"""HTTPS and verifiers behind TLS: the official client through it, and everybody who is refused."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.connections import DEFAULT_LIMITS
from gateway.keys import given_keys
from gateway.server import RunningGateway
from outrider.credentials import Credentials
from outrider.https import Https, load_https
from outrider.probes import http_is_healthy, port_is_open
from tests.certificates import Authority, Pair
from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import FakeVerifier


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def https_of(authority: Authority, required: bool = False) -> Https:
    pair = authority.issue()
    https = load_https(pair.cert, pair.key, authority.ca, 2 if required else 0)
    assert https is not None
    return https


def trusting(authority: Authority, shows: Pair | None = None) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if shows is not None:
        context.load_cert_chain(shows.cert, shows.key)
    return httpx.AsyncClient(verify=context, trust_env=False, timeout=10)


async def status(client: httpx.AsyncClient, url: str) -> int:
    """The status of a GET; 0 where no request got through."""
    async with client:
        try:
            return (await client.get(f"{url}/version")).status_code
        except httpx.TransportError:
            return 0


async def test_the_official_client_streams_through_tls(
    verifier: FakeVerifier, start_gateway: StartGateway, authority: Authority
) -> None:
    gateway = await start_gateway(verifier.address, https=https_of(authority))
    assert gateway.url.startswith("https://127.0.0.1:")
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", http_client=trusting(authority)
    ) as client:
        stream = await client.completions.create(model="fake-model", prompt="x", stream=True)
        text = "".join([part.choices[0].text async for part in stream])
    assert text == "Hello!"


async def test_plain_http_at_a_tls_port_is_not_answered(
    verifier: FakeVerifier, start_gateway: StartGateway, authority: Authority
) -> None:
    gateway = await start_gateway(verifier.address, https=https_of(authority))
    plain = gateway.url.replace("https", "http")
    assert await status(httpx.AsyncClient(trust_env=False), plain) == 0
    assert await status(trusting(authority), gateway.url) == 200


async def test_a_client_of_another_authority_does_not_believe_it(
    verifier: FakeVerifier, start_gateway: StartGateway, authority: Authority, tmp_path: Path
) -> None:
    gateway = await start_gateway(verifier.address, https=https_of(authority))
    assert await status(trusting(Authority(tmp_path)), gateway.url) == 0


async def test_required_client_certificates_keep_others_out(
    verifier: FakeVerifier, start_gateway: StartGateway, authority: Authority, tmp_path: Path
) -> None:
    gateway = await start_gateway(verifier.address, https=https_of(authority, required=True))
    known = authority.issue("client")
    expired = authority.issue("old", days=(-3, -1))
    foreign = Authority(tmp_path).issue("client")
    assert await status(trusting(authority, known), gateway.url) == 200
    for shows in (None, expired, foreign):
        assert await status(trusting(authority, shows), gateway.url) == 0


async def test_a_stalled_handshake_is_let_go(
    verifier: FakeVerifier, start_gateway: StartGateway, authority: Authority
) -> None:
    gateway = await start_gateway(
        verifier.address,
        https=https_of(authority),
        connections=replace(DEFAULT_LIMITS, handshake_timeout_s=0.05),
    )
    host, port = gateway.url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
    assert await status(trusting(authority), gateway.url) == 200


async def _behind(
    start_gateway: StartGateway, address: str, credentials: Credentials
) -> tuple[int, str]:
    gateway: RunningGateway = await start_gateway(
        address, credentials=credentials, connect_timeout_s=0.5
    )
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=20) as http:
        answer = await http.post("/v1/completions", json={"prompt": "x"})
    return answer.status_code, answer.text


async def test_a_verifier_behind_mutual_tls(
    start_gateway: StartGateway, authority: Authority, tmp_path: Path, free_port: int
) -> None:
    demanding = authority.server(mutual=True)
    fake = FakeVerifier(f"127.0.0.1:{free_port}", credentials=demanding)
    await fake.start()
    try:
        own = authority.client(shows=authority.issue("gateway"))
        assert (await _behind(start_gateway, fake.address, own))[0] == 200
        others: list[Any] = [Credentials(), authority.client(), Authority(tmp_path).client()]
        for other in others:
            code, text = await _behind(start_gateway, fake.address, other)
            assert code == 503, text
        assert len(fake.requests) == 1
    finally:
        await fake.stop()


async def test_serve_sees_that_such_a_gateway_is_ready(
    verifier: FakeVerifier, start_gateway: StartGateway, authority: Authority
) -> None:
    keys = given_keys(["key"], "--api-key")
    gateway = await start_gateway(verifier.address, https=https_of(authority), api_keys=keys)
    assert await asyncio.to_thread(http_is_healthy, f"{gateway.url}/health")
    assert not await asyncio.to_thread(http_is_healthy, f"{gateway.url}/version")
    demanding = await start_gateway(verifier.address, https=https_of(authority, required=True))
    assert not await asyncio.to_thread(http_is_healthy, f"{demanding.url}/health")
    port = int(demanding.url.rpartition(":")[2])
    assert await asyncio.to_thread(port_is_open, "127.0.0.1", port)
    await demanding.stop()
    assert not await asyncio.to_thread(port_is_open, "127.0.0.1", port)
