"""The access log, and what happens when the gateway itself has a bug."""

from __future__ import annotations

import logging

import httpx
import pytest

from gateway.access import AccessMiddleware
from gateway.metrics import GatewayMetrics
from gateway.routing import VerifierPool
from tests.gateway.fake_verifier import MODEL


async def test_one_line_for_each_request_without_its_text(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"X-Request-Id": "my-id"}
    response = await http.post("/v1/completions", json={"prompt": "secret"}, headers=headers)
    assert response.headers["x-request-id"] == "my-id"
    assert response.json()["id"] == "cmpl-my-id"
    lines = [r.getMessage() for r in caplog.records if r.name == "gateway.access"]
    (line,) = lines
    assert line.startswith("POST /v1/completions 200 ")
    for part in ("request=my-id", f"model={MODEL}", "prompt_tokens=6", "completion_tokens=6"):
        assert part in line
    assert not any("secret" in r.getMessage() or "Hello" in r.getMessage() for r in caplog.records)


async def test_polls_are_logged_at_debug_only(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gateway.access")
    for path in ("/health", "/metrics", "/ping", "/version", "/health/nothing"):
        await http.get(path)
    levels = {
        r.getMessage().split()[1]: r.levelno for r in caplog.records if r.name == "gateway.access"
    }
    assert levels == {
        "/health": logging.DEBUG,
        "/metrics": logging.DEBUG,
        "/ping": logging.DEBUG,
        "/version": logging.INFO,
        "/health/nothing": logging.INFO,
    }


async def test_hostile_request_ids_are_replaced(http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "a" * 500}
    )
    assert len(response.headers["x-request-id"]) == 32


async def test_paths_cannot_forge_log_lines(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    await http.get("/a%0Aforged%20line")
    (line,) = [r.getMessage() for r in caplog.records if r.name == "gateway.access"]
    assert "\n" not in line


async def test_a_bug_is_a_500_without_its_traceback(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: VerifierPool, model: str | None) -> str:
        raise ZeroDivisionError("the secret of the bug")

    monkeypatch.setattr(VerifierPool, "resolve", broken)
    response = await http.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "InternalServerError"
    assert "secret" not in response.text
    assert any(r.exc_info and r.name == "gateway.access" for r in caplog.records)


async def test_other_protocols_pass_through() -> None:
    seen: list[str] = []

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        seen.append(scope["type"])

    middleware = AccessMiddleware(app, GatewayMetrics(), frozenset())
    await middleware({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]
