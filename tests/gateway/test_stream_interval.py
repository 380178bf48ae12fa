"""How many tokens the verifier is told to put into a message."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier


@pytest.mark.parametrize(("asked", "told"), [({}, 1), ({"stream_interval": 3}, 3)])
async def test_a_stream_asks_for_its_interval(
    client: openai.AsyncOpenAI, verifier: FakeVerifier, asked: dict[str, int], told: int
) -> None:
    verifier.script = lambda request: Answer(pieces=[(letter, 0) for letter in "abc"])
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True, extra_body=asked)
    texts = [chunk.choices[0].text async for chunk in stream]
    assert "".join(texts) == "abc"
    assert [request.stream_interval for request in verifier.requests] == [told]


@pytest.mark.parametrize("asked", [{}, {"stream_interval": 3}])
async def test_a_whole_answer_asks_for_few_messages(
    http: httpx.AsyncClient, verifier: FakeVerifier, asked: dict[str, int]
) -> None:
    response = await http.post("/v1/completions", json={"model": MODEL, "prompt": "x", **asked})
    assert response.json()["choices"][0]["text"] == "Hello!"
    assert [request.stream_interval for request in verifier.requests] == [64]
