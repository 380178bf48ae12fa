"""Keys over the wire: who is let in where, what the others are told, and who is counted."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from gateway.access import AccessRecord
from gateway.authentication import Authentication
from gateway.keys import ApiKey, KeyRing, digest_of, given_keys
from gateway.server import RunningGateway
from tests.gateway.conftest import StartGateway, client_of
from tests.gateway.fake_verifier import Answer, FakeVerifier

KEY = "alpha-key"
HEADERS = {"Authorization": f"Bearer {KEY}"}
BODY = {"prompt": "x"}
WRONG = [
    "",
    "Bearer",
    "Bearer wrong",
    "Basic alpha-key",
    KEY,
    f"Bearer {KEY}x",
    f"Bearer {KEY} x",
]


@pytest.fixture
async def gateway(verifier: FakeVerifier, start_gateway: StartGateway) -> RunningGateway:
    keys = (*given_keys([KEY], "--api-key"), ApiKey("alice", digest_of("beta-key")))
    return await start_gateway(verifier.address, api_keys=keys, connect_timeout_s=0.5)


async def test_the_official_client_is_let_in_by_its_key(gateway: RunningGateway) -> None:
    async with client_of(gateway) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.completions.create(model="fake-model", prompt="x")
        assert caught.value.code == "invalid_api_key"
        assert caught.value.type == "AuthenticationError"
        allowed = client.with_options(api_key=KEY)
        answer = await allowed.completions.create(model="fake-model", prompt="x")
        assert answer.choices[0].text == "Hello!"


async def test_what_is_no_key_is_401_and_reaches_no_verifier(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    for header in WRONG:
        headers = {"Authorization": header} if header else {}
        answer = await http.post("/v1/completions", json=BODY, headers=headers)
        assert answer.status_code == 401, header
        assert answer.headers["www-authenticate"] == 'Bearer realm="outrider"'
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert "wrong" not in error["message"] and KEY not in error["message"]
    assert verifier.requests == []


async def test_a_schemes_case_does_not_matter(http: httpx.AsyncClient) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {KEY}"}
        assert (await http.get("/v1/models", headers=headers)).status_code == 200


async def test_two_headers_are_no_key(http: httpx.AsyncClient) -> None:
    headers = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {KEY}")]
    assert (await http.get("/v1/models", headers=headers)).status_code == 401


PATHS = ["/", "/version", "/load", "/metrics", "/v1/models", "/v1/acceptance", "/v1/requests"]
PATHS += ["/v1/live", "/v1/acceptance/export", "/nothing", "/health/", "/Health", "//health"]
PATHS += ["/dashboardx", "/v1/models/%2e%2e/%2e%2e/health", "/ping/%2e%2e/load", "/docs"]


async def test_everything_needs_a_key(http: httpx.AsyncClient) -> None:
    for path in PATHS:
        assert (await http.get(path)).status_code == 401, path
    for path in ("/tokenize", "/detokenize", "/v1/chat/completions"):
        assert (await http.post(path, json={})).status_code == 401, path


async def test_health_is_open_and_tells_strangers_nothing_more(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    for path in ("/health", "/ping"):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    known = (await http.get("/health", headers=HEADERS)).json()
    assert known["verifiers"][0]["address"] == verifier.address
    await verifier.stop()
    dead = await http.get("/health")
    assert dead.status_code == 503
    assert "unix:" not in dead.text
    assert verifier.address in (await http.get("/health", headers=HEADERS)).text


async def test_the_dashboards_files_are_open_and_its_data_is_not(http: httpx.AsyncClient) -> None:
    assert (await http.get("/dashboard")).status_code == 200
    assert (await http.post("/dashboard", json={})).status_code == 401
    assert (await http.get("/v1/live")).status_code == 401


async def test_without_keys_everything_is_open(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(verifier.address)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        assert (await http.get("/version")).status_code == 200
        assert (await http.get("/version", headers={"Authorization": "x"})).status_code == 200
        assert "verifiers" in (await http.get("/health")).json()


async def test_a_keys_name_is_logged_and_counted_and_the_key_never(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await http.post("/v1/completions", json=BODY, headers=HEADERS)
    await http.post("/v1/completions", json=BODY, headers={"Authorization": "Bearer beta-key"})
    await http.post("/v1/completions", json=BODY, headers={"Authorization": "Bearer gamma-key"})
    metrics = (await http.get("/metrics", headers=HEADERS)).text
    # httpx is the client here.
    ours = [record for record in caplog.records if not record.name.startswith("http")]
    logged = "\n".join(record.getMessage() for record in ours)
    assert "200" in logged and "key=alice" in logged and "key=key-1" in logged
    for text in (metrics, logged):
        assert not any(key in text for key in (KEY, "beta-key", "gamma-key"))
    assert 'outrider:key_responses_total{key_name="alice",status="200"} 1.0' in metrics
    assert 'outrider:key_responses_total{key_name="key-1",status="200"} 1.0' in metrics
    assert 'http_responses_total{route="/v1/completions",status="401"} 1.0' in metrics


async def test_a_key_over_its_limits_is_429_until_it_may_again(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    key = ApiKey("alice", digest_of(KEY), requests_per_minute=2)
    gateway = await start_gateway(verifier.address, api_keys=(key,))
    async with client_of(gateway) as unknown:
        client = unknown.with_options(api_key=KEY)
        for _ in range(2):
            await client.completions.create(model="fake-model", prompt="x")
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(model="fake-model", prompt="x")
        assert caught.value.code == "rate_limit_exceeded"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
        # Reading costs nothing.
        assert (await client.models.list()).data


async def test_at_once_counts_a_stream_until_it_has_ended(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    verifier.script = lambda request: Answer(wait_after=1)
    key = ApiKey("alice", digest_of(KEY), max_concurrent_requests=1)
    gateway = await start_gateway(verifier.address, api_keys=(key,))
    body = {**BODY, "stream": True}
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, headers=HEADERS) as http:
        async with http.stream("POST", "/v1/completions", json=body) as stream:
            await asyncio.wait_for(verifier.reached.wait(), 10)
            refused = await http.post("/v1/completions", json=BODY)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            verifier.release.set()
            await stream.aread()
        async with asyncio.timeout(10):
            while (await http.post("/v1/completions", json=BODY)).status_code == 429:
                await asyncio.sleep(0.01)


async def test_a_client_that_leaves_gives_its_place_back(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    key = ApiKey("alice", digest_of(KEY), max_concurrent_requests=1)
    gateway = await start_gateway(verifier.address, api_keys=(key,))
    verifier.script = lambda request: Answer(hang_after=1)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, headers=HEADERS) as http:
        async with http.stream("POST", "/v1/completions", json={**BODY, "stream": True}):
            await asyncio.wait_for(verifier.reached.wait(), 10)
        verifier.script = lambda request: Answer()
        async with asyncio.timeout(10):
            while (await http.post("/v1/completions", json=BODY)).status_code == 429:
                await asyncio.sleep(0.01)


async def test_a_large_body_without_a_key_is_not_taken(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/completions", content=b"x" * 5_000_000)
    assert answer.status_code == 401
    assert answer.headers["connection"] == "close"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key"]), st.binary(max_size=60))),
    st.text(max_size=30),
    st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "DELETE"]),
)
def test_no_header_and_no_path_opens_it(
    headers: list[tuple[bytes, bytes]], path: str, method: str
) -> None:
    reached: list[str] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    guarded = Authentication(app, KeyRing(given_keys([KEY], "o")), ("/dashboard",))
    scope = {
        "type": "http",
        "method": method,
        "path": f"/v1/{path}",
        "headers": headers,
        "outrider.access": AccessRecord(),
    }
    asyncio.run(guarded(scope, receive, send))
    assert reached == []
    assert sent[0]["status"] == 401
    assert json.loads(sent[1]["body"])["error"]["code"] == "invalid_api_key"


@pytest.fixture
async def http(gateway: RunningGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False) as client:
        yield client
