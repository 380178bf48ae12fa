"""What a client did wrong: an error of OpenAI's shape that names the field, never a traceback."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import openai
import pytest

from tests.gateway.conftest import StartGateway
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "x"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}


def assert_refused(response: httpx.Response, status: int, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["param"] == param
    message: str = error["message"]
    assert "Traceback" not in message
    return message


async def test_refusals_are_answered_over_http(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    response = await http.post("/v1/completions", json={**COMPLETION, "temperature": 3})
    assert "0 to 2" in assert_refused(response, 400, "temperature")
    response = await http.post("/v1/chat/completions", json={**CHAT, "best_of": 2})
    assert "not supported" in assert_refused(response, 400, "best_of")
    response = await http.post("/tokenize", json={})
    assert_refused(response, 400, "prompt")
    response = await http.post("/detokenize", json={"tokens": ["a"]})
    assert_refused(response, 400, "tokens")
    headers = {"Content-Type": "application/json"}
    response = await http.post("/v1/completions", content=b"{", headers=headers)
    assert "not valid JSON" in assert_refused(response, 400)
    assert not verifier.requests


async def test_too_many_choices(verifier: FakeVerifier, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(verifier.address, max_choices=5)
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        body = {**COMPLETION, "prompt": ["a", "b"], "n": 3}
        response = await http.post("/v1/completions", json=body)
        assert "at most 5" in assert_refused(response, 400, "prompt")


async def test_paired_surrogates_are_text(http: httpx.AsyncClient, verifier: FakeVerifier) -> None:
    response = await http.post(
        "/v1/completions",
        content=b'{"prompt": "\\ud83d\\ude80 and \\\\ud83d"}',
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 200
    assert verifier.requests[0].text == "🚀 and \\ud83d"


async def test_other_media_types_are_refused(http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"}
    )
    assert "application/json" in assert_refused(response, 415)


async def test_unknown_routes_and_methods(http: httpx.AsyncClient) -> None:
    assert "/v1/nothing" in assert_refused(await http.get("/v1/nothing"), 404)
    assert_refused(await http.post("/v1/completions/"), 404)
    response = await http.get("/v1/completions")
    assert_refused(response, 405)
    assert response.headers["allow"] == "POST"


async def test_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.completions.create(model="other", prompt="x")
    assert caught.value.param == "model"
    assert MODEL in caught.value.message


async def test_official_client_raises_bad_request(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="x", temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.type == "BadRequestError"


async def test_field_and_code_that_the_verifier_names(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(
        status=grpc.StatusCode.INVALID_ARGUMENT,
        message="max_tokens: 5000 does not fit",
        metadata=(("outrider-field", "max_tokens"), ("outrider-code", "context_length_exceeded")),
    )
    error = (await http.post("/v1/completions", json=COMPLETION)).json()["error"]
    assert error["param"] == "max_tokens"
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "BadRequestError"
