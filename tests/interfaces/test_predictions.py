"""OpenAI's predicted outputs with the official client: the same answers, in fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from speculation.v1 import verifier_pb2 as pb

from tests.interfaces.stack import MAX_MODEL_LEN, MODEL, Stack, stack
from verifier_service.messages import RejectionRule

ALONE = {"speculative_decoding": {"proposer": "prediction"}}
OFF = {"speculative_decoding": {"enabled": False}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def chat(client: openai.AsyncOpenAI, **options: Any) -> Any:
    options = {"max_completion_tokens": 40, "temperature": 0.8, "seed": 3, **options}
    return await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a dog"}], **options
    )


def predicted(text: Any) -> dict[str, Any]:
    return {"type": "content", "content": text}


def figures(answer: Any) -> dict[str, Any]:
    told: dict[str, Any] = answer.model_extra["metrics"]["speculative_decoding"]
    return told


async def by_proposer(http: httpx.AsyncClient, name: str) -> dict[str, float]:
    text = (await http.get("/metrics")).text
    return {
        sample.labels["proposer"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"outrider:proposer_{name}_total"
    }


async def test_a_prediction_changes_the_steps_and_nothing_else(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    plain = await chat(client, extra_body=OFF)
    text = plain.choices[0].message.content
    for content in (text, [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]):
        answer = await chat(client, prediction=predicted(content), extra_body=ALONE)
        assert answer.choices[0].message.content == text
        details = answer.usage.completion_tokens_details
        assert details.accepted_prediction_tokens == figures(answer)["num_accepted_draft_tokens"]
        assert details.rejected_prediction_tokens == 0
        assert figures(answer)["mean_acceptance_length"] > 4
    assert set(await by_proposer(http, "drafts")) == {"prediction"}
    accepted = await by_proposer(http, "accepted_tokens")
    assert accepted["prediction"] == 2 * figures(answer)["num_accepted_draft_tokens"]
    assert accepted == await by_proposer(http, "draft_tokens")


async def test_a_wrong_prediction_costs_drafts_and_no_token(client: openai.AsyncOpenAI) -> None:
    plain = await chat(client, extra_body=OFF)
    text = plain.choices[0].message.content
    for content in ("{} [] 12, 34;", text[20:] + text[:10], text[:12] + "STOP" + text[14:], ""):
        answer = await chat(client, prediction=predicted(content), extra_body=ALONE)
        assert answer.choices[0].message.content == text
        assert figures(answer)["draft_acceptance_rate"] < 1


async def test_beside_proposers_both_are_used(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    plain = await chat(client, extra_body=OFF)
    text = plain.choices[0].message.content
    answer = await chat(client, prediction=predicted(text[:16] + "#" * 30))
    assert answer.choices[0].message.content == text
    drafts = await by_proposer(http, "drafts")
    assert drafts["prediction"] > 0 and drafts["toy"] > 0
    assert sum(drafts.values()) == figures(answer)["num_spec_steps"]


async def test_a_stream_tells_the_same(client: openai.AsyncOpenAI) -> None:
    plain = await chat(client, extra_body=OFF)
    text = plain.choices[0].message.content
    options = {"prediction": predicted(text), "extra_body": ALONE}
    whole = await chat(client, **options)
    stream = await chat(client, **options, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == text
    assert figures(chunks[-1]) == figures(whole)
    assert chunks[-1].usage.completion_tokens_details == whole.usage.completion_tokens_details


async def test_what_openai_refuses_beside_it_is_exact_here(client: openai.AsyncOpenAI) -> None:
    for options in (
        {"n": 3},
        {"logprobs": True, "top_logprobs": 2},
        {"presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},
        {"stop": ["t on"]},
    ):
        plain = await chat(client, **options, extra_body=OFF)
        text = plain.choices[0].message.content or ""
        answer = await chat(client, **options, prediction=predicted(text), extra_body=ALONE)
        assert answer.choices == plain.choices
        assert figures(answer)["num_accepted_draft_tokens"] > 0 or not text


async def test_completions_take_it_too(client: openai.AsyncOpenAI) -> None:
    async def completion(**extra: Any) -> Any:
        return await client.completions.create(
            model=MODEL, prompt=["the cat", "a dog"], max_tokens=30, seed=1, extra_body=extra
        )

    plain = await completion(**OFF)
    answer = await completion(prediction=predicted(plain.choices[1].text), **ALONE)
    assert [c.text for c in answer.choices] == [c.text for c in plain.choices]
    first, second = answer.model_extra["metrics"]["choices"]
    accepted = "num_accepted_draft_tokens"
    assert second["speculative_decoding"][accepted] > first["speculative_decoding"][accepted]


@pytest.mark.parametrize("rule", ["coupled", "standard", "block"])
async def test_without_any_speculation_of_the_verifier(socket_dir: Path, rule: str) -> None:
    async with stack(socket_dir, k=0, rejection_rule=RejectionRule(rule)) as running:
        plain = await chat(running.client, temperature=0)
        text = plain.choices[0].message.content
        assert figures(plain)["acceptance_histogram"] == [0]
        assert "spec_decode" not in "".join(
            line
            for line in (await running.http.get("/metrics")).text.splitlines()
            if not line.startswith("#")
        )
        answer = await chat(running.client, temperature=0, prediction=predicted(text))
        assert answer.choices[0].message.content == text
        assert figures(answer)["num_spec_tokens"] == 8
        assert len(figures(answer)["acceptance_histogram"]) == 9
        assert figures(answer)["mean_acceptance_length"] > 6
        accepted = figures(answer)["num_accepted_draft_tokens"]
        assert await by_proposer(running.http, "accepted_tokens") == {"prediction": accepted}
        assert (
            "vllm:spec_decode_num_accepted_tokens_total{"
            in (await running.http.get("/metrics")).text
        )


@pytest.mark.parametrize(
    ("extra", "param", "message"),
    [
        ({"proposer": "ngram"}, "prediction", "send 'prediction'"),
        ({"proposer": "toys"}, "speculative_decoding.proposer", "own: prediction"),
        ({"num_speculative_tokens": 5}, "speculative_decoding.num_speculative_tokens", "0 to 4"),
    ],
)
async def test_contradictions_are_refused(
    socket_dir: Path, extra: dict[str, Any], param: str, message: str
) -> None:
    async with stack(socket_dir, attached=("ngram",)) as running:
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(
                running.client,
                prediction=predicted("text"),
                extra_body={"speculative_decoding": extra},
            )
    assert caught.value.param == param
    assert message in caught.value.message


async def test_a_prediction_longer_than_the_context_is_refused(client: openai.AsyncOpenAI) -> None:
    for content in ("cat 12; " * MAX_MODEL_LEN, "x" * 10_000_000):
        with pytest.raises(openai.BadRequestError) as caught:
            await chat(client, prediction=predicted(content[: 9 * 1024 * 1024]))
        assert caught.value.param == "prediction"
        assert caught.value.code == "context_length_exceeded"
        assert str(MAX_MODEL_LEN) in caught.value.message


async def test_ids_over_grpc(running: Stack) -> None:
    async def answer(**fields: Any) -> tuple[list[int], pb.Finished]:
        request = pb.GenerateRequest(
            text="the cat", sampling=pb.SamplingParams(seed=2, max_tokens=30), **fields
        )
        ids: list[int] = []
        async for message in running.verifier.Generate(request):
            ids.extend(message.delta.token_ids)
            finished = message.finished
        return ids, finished

    off = pb.SpeculationParams(enabled=False)
    alone = pb.SpeculationParams(proposer="prediction")
    plain, _ = await answer(speculation=off)
    prediction = pb.Prediction(token_ids=pb.TokenIds(ids=plain))
    ids, finished = await answer(speculation=alone, prediction=prediction)
    assert ids == plain
    assert finished.acceptance.num_accepted_draft_tokens > 20
    ids, finished = await answer(speculation=off, prediction=prediction)
    assert (ids, finished.acceptance.num_draft_tokens) == (plain, 0)
