"""Several verifiers, dead ones, restarted ones."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import openai
import pytest

from gateway.server import RunningGateway
from tests.gateway.conftest import StartGateway, client_of
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

BODY = {"model": MODEL, "prompt": "x"}


@pytest.fixture
async def second(socket_dir: Path) -> AsyncIterator[FakeVerifier]:
    fake = FakeVerifier(f"unix:{socket_dir}/second.sock")
    await fake.start()
    yield fake
    await fake.stop()


def http_of(gateway: RunningGateway) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False, verify=False)


async def health_becomes(http: httpx.AsyncClient, status: int) -> httpx.Response:
    async with asyncio.timeout(20):
        while (response := await http.get("/health")).status_code != status:
            await asyncio.sleep(0.02)
    return response


async def test_the_least_loaded_verifier_is_taken(
    verifier: FakeVerifier, second: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, second.address)
    async with http_of(gateway) as http:
        await health_becomes(http, 200)
        verifier.script = lambda request: Answer(wait_after=1)
        blocked = asyncio.create_task(http.post("/v1/completions", json=BODY))
        await asyncio.wait_for(verifier.reached.wait(), 10)
        for _ in range(3):
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        assert (len(verifier.requests), len(second.requests)) == (1, 3)
        verifier.release.set()
        assert (await blocked).status_code == 200
        await http.post("/v1/completions", json=BODY)
        assert len(verifier.requests) == 2


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_verifier_that_cannot_take_it_is_passed_over(
    verifier: FakeVerifier,
    second: FakeVerifier,
    start_gateway: StartGateway,
    code: grpc.StatusCode,
) -> None:
    verifier.script = lambda request: Answer(status=code, message="full")
    gateway = await start_gateway(verifier.address, second.address)
    async with http_of(gateway) as http:
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    assert (len(verifier.requests), len(second.requests)) == (1, 1)


async def test_one_that_fails_between_acceptance_and_first_message_is_passed_over(
    verifier: FakeVerifier, second: FakeVerifier, start_gateway: StartGateway
) -> None:
    verifier.script = lambda request: Answer(start_late=True)
    gateway = await start_gateway(verifier.address, second.address)
    async with http_of(gateway) as http:
        await health_becomes(http, 200)
        asked = asyncio.create_task(http.post("/v1/completions", json={**BODY, "stream": True}))
        await asyncio.wait_for(verifier.reached.wait(), 10)
        await verifier.stop()
        response = await asyncio.wait_for(asked, 10)
    assert response.status_code == 200
    assert "[DONE]" in response.text
    assert (len(verifier.requests), len(second.requests)) == (1, 1)


async def test_a_refusal_is_not_tried_elsewhere(
    verifier: FakeVerifier, second: FakeVerifier, start_gateway: StartGateway
) -> None:
    verifier.script = lambda request: Answer(status=grpc.StatusCode.INVALID_ARGUMENT, message="no")
    gateway = await start_gateway(verifier.address, second.address)
    async with http_of(gateway) as http:
        await health_becomes(http, 200)
        assert (await http.post("/v1/completions", json=BODY)).status_code == 400
    assert not second.requests


async def test_a_dead_verifier_is_passed_over(
    verifier: FakeVerifier, second: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address, second.address)
    async with http_of(gateway) as http:
        await http.post("/v1/completions", json=BODY)
        await verifier.stop()
        for _ in range(3):
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        states = (await http.get("/health")).json()["verifiers"]
    assert len(second.requests) == 3
    assert [state["serves"] for state in states] == [False, True]
    assert states[0]["problem"]


async def test_models_of_different_verifiers_are_told_apart(
    verifier: FakeVerifier, second: FakeVerifier, start_gateway: StartGateway
) -> None:
    second.model = "other"
    gateway = await start_gateway(verifier.address, second.address)
    async with http_of(gateway) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == [MODEL, "other"]
        answer = await http.post("/v1/completions", json={"model": "other", "prompt": "x"})
        assert answer.json()["model"] == "other"
        unnamed = await http.post("/v1/completions", json={"prompt": "x"})
        assert unnamed.json()["model"] == MODEL
    assert (len(verifier.requests), len(second.requests)) == (1, 1)


async def test_no_verifier_is_a_503_with_the_reason(
    socket_dir: Path, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(f"unix:{socket_dir}/nobody.sock", connect_timeout_s=0.1)
    async with http_of(gateway) as http:
        for method, path in (
            ("GET", "/health"),
            ("GET", "/ping"),
            ("GET", "/v1/models"),
            ("POST", "/v1/completions"),
            ("POST", "/tokenize"),
        ):
            response = await http.request(method, path, json={"prompt": "x"})
            assert response.status_code == 503, path
            assert response.headers["retry-after"] == "1"
            assert "nobody.sock" in response.json()["error"]["message"]
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/version")).status_code == 200
    async with client_of(gateway) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.completions.create(model=MODEL, prompt="x")
        assert caught.value.status_code == 503


async def test_a_verifier_that_says_it_does_not_serve(
    verifier: FakeVerifier, gateway: RunningGateway
) -> None:
    verifier.serving = False
    async with http_of(gateway) as http:
        response = await health_becomes(http, 503)
        assert "does not serve" in response.json()["error"]["message"]
        verifier.serving = True
        await health_becomes(http, 200)


async def test_a_verifier_that_comes_later_is_served(
    socket_dir: Path, start_gateway: StartGateway
) -> None:
    late = FakeVerifier(f"unix:{socket_dir}/late.sock")
    gateway = await start_gateway(late.address, connect_timeout_s=0.2)
    async with http_of(gateway) as http:
        assert (await http.post("/v1/completions", json=BODY)).status_code == 503
        await late.start()
        await health_becomes(http, 200)
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    await late.stop()


async def test_a_verifier_restarted_with_another_model(
    verifier: FakeVerifier, gateway: RunningGateway
) -> None:
    async with http_of(gateway) as http:
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        await verifier.stop()
        verifier.model = "newer"
        await verifier.start()
        response = await http.post("/v1/completions", json={"model": "newer", "prompt": "x"})
        assert response.status_code == 200
        assert (await http.post("/v1/completions", json=BODY)).status_code == 404


async def kill_in_mid_answer(gateway: RunningGateway, address: str, stream: bool) -> bytes:
    """Kill -9 a verifier process while it answers; what the client then reads."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.gateway.fake_verifier", address
    )
    try:
        async with http_of(gateway) as http:
            await health_becomes(http, 200)
            body = {**BODY, "stream": stream}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                received = b""
                async for chunk in response.aiter_bytes():
                    received += chunk
                    if b'"lo"' in received and process.returncode is None:
                        process.send_signal(signal.SIGKILL)
                        await process.wait()
            assert response.status_code == 200
            return received
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_kill_in_mid_stream_is_an_error_event_then_restart_serves(
    socket_dir: Path, start_gateway: StartGateway
) -> None:
    address = f"unix:{socket_dir}/killed.sock"
    gateway = await start_gateway(address)
    received = await asyncio.wait_for(kill_in_mid_answer(gateway, address, True), 60)
    events = received.decode().strip().split("\n\n")
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert error["code"] == 503
    assert error["type"] == "ServiceUnavailableError"
    successor = FakeVerifier(address)
    (socket_dir / "killed.sock").unlink(missing_ok=True)
    await successor.start()
    async with http_of(gateway) as http:
        async with asyncio.timeout(20):
            while (await http.post("/v1/completions", json=BODY)).status_code != 200:
                await asyncio.sleep(0.02)
    await successor.stop()


async def test_stop_in_mid_answer_is_a_503(verifier: FakeVerifier, gateway: RunningGateway) -> None:
    verifier.script = lambda request: Answer(hang_after=1)
    async with http_of(gateway) as http:
        running = asyncio.create_task(http.post("/v1/completions", json=BODY))
        await asyncio.wait_for(verifier.reached.wait(), 10)
        await verifier.stop()
        response = await asyncio.wait_for(running, 10)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
