"""`metrics` of responses with several choices: their sum, and each one's."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from gateway.settings import SpecDecodeMetrics
from tests.gateway.conftest import StartGateway, client_of
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

PIECES = {"a": [("ab", 4), ("c", 1)], "b": [("xyzw", 3)], "c": [("q", 0)]}


@pytest.fixture(autouse=True)
def scripted(verifier: FakeVerifier) -> None:
    verifier.script = lambda request: Answer(pieces=list(PIECES[request.text]))


def by_choice(metrics: dict[str, Any], name: str) -> list[Any]:
    assert [choice["index"] for choice in metrics["choices"]] == list(
        range(len(metrics["choices"]))
    )
    return [choice["speculative_decoding"][name] for choice in metrics["choices"]]


async def test_several_prompts_have_a_sum_and_their_own(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["a", "b", "c"])
    metrics = answer.model_extra["metrics"]
    assert by_choice(metrics, "num_draft_tokens") == [5, 3, 0]
    assert by_choice(metrics, "acceptance_histogram") == [
        [1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0],
    ]
    assert by_choice(metrics, "mean_acceptance_length") == [1.5, 4.0, 1.0]
    total = metrics["speculative_decoding"]
    assert (total["num_draft_tokens"], total["num_spec_steps"]) == (8, 3)
    assert set(metrics["choices"][0]["speculative_decoding"]) == set(total)


async def test_several_choices_of_one_prompt(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="a", n=3)
    metrics = answer.model_extra["metrics"]
    assert by_choice(metrics, "num_spec_steps") == [2, 2, 2]
    assert metrics["speculative_decoding"]["num_spec_steps"] == 6


async def test_one_choice_has_vllms_object_and_nothing_else(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="a", n=1)
    assert "choices" not in answer.model_extra["metrics"]


async def test_a_stream_has_them_in_its_usage_chunk(http: httpx.AsyncClient) -> None:
    body = {"prompt": ["a", "c"], "n": 1}
    whole = (await http.post("/v1/completions", json=body)).json()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    response = await http.post("/v1/completions", json=asked)
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in response.text.splitlines()
        if line.startswith("data: {")
    ]
    assert chunks[-1]["metrics"]["choices"] == whole["metrics"]["choices"]
    assert not any("metrics" in chunk for chunk in chunks[:-1])


async def test_detailed_lists_are_each_choices_own(
    verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(
        verifier.address,
        per_request_spec_decode_metrics=SpecDecodeMetrics.DETAILED,
        force_include_usage=True,
    )
    async with client_of(gateway) as client:
        whole = await client.completions.create(model=MODEL, prompt=["a", "b", "c"])
        stream = await client.completions.create(model=MODEL, prompt=["a", "c"], stream=True)
        chunks = [chunk async for chunk in stream]
    metrics = whole.model_extra["metrics"]
    assert by_choice(metrics, "per_step_accepted") == [[1, 0], [3], None]
    assert by_choice(metrics, "per_step_drafted") == [[4, 1], [3], None]
    assert metrics["speculative_decoding"]["per_step_drafted"] == [4, 1, 3]
    first, second = chunks[-1].model_extra["metrics"]["choices"]
    assert first["speculative_decoding"]["per_step_drafted"] == [4, 1]
    # Streams leave null members out.
    assert "per_step_drafted" not in second["speculative_decoding"]
