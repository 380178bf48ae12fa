"""What is answered offline is what a server answers: same engine, same seed, same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import SamplingParams
from tests.interfaces.stack import MODEL, stack
from tests.outrider.llm.conftest import SPECULATION, MakeLLM

PROMPTS = ["the cat", "a dog and", "STOP stopping 12"]
# As sent over HTTP and as keywords: the fields have the same names.
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 30},
    {"temperature": 0.9, "max_tokens": 30, "seed": 7, "top_p": 0.95, "n": 2},
    {"temperature": 1.1, "max_tokens": 40, "seed": -3, "top_k": 20, "min_p": 0.01},
    {"temperature": 0.8, "max_tokens": 40, "seed": 2**53, "stop": [" cat", "dog"]},
    {
        "temperature": 1.0,
        "max_tokens": 24,
        "seed": 11,
        "ignore_eos": True,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "bad_words": [" mat"],
        "min_tokens": 5,
    },
    {"temperature": 1.0, "max_tokens": 20, "seed": 1, "structured_outputs": {"regex": "[a-z ]+"}},
    {"temperature": 0.7, "max_tokens": 20, "seed": 4, "stop_token_ids": [40], "logprobs": 2},
]
_OPENAI = {"temperature", "max_tokens", "seed", "top_p", "n", "stop", "logprobs"} | {
    "presence_penalty",
    "frequency_penalty",
}


def http_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The keywords of the OpenAI client: what it does not know goes into `extra_body`."""
    extra = {key: value for key, value in fields.items() if key not in _OPENAI}
    known = {key: value for key, value in fields.items() if key in _OPENAI}
    return {**known, "extra_body": {**extra, "return_token_ids": True}}


@pytest.mark.parametrize("fields", SAMPLING, ids=lambda fields: "+".join(sorted(fields))[:60])
async def test_completions_equal_the_served_ones(
    toy_llm: MakeLLM, socket_dir: Path, fields: dict[str, Any]
) -> None:
    llm = toy_llm(speculative_config=SPECULATION)
    offline = llm.generate(PROMPTS, SamplingParams(**fields), use_tqdm=False)
    async with stack(socket_dir) as served:
        for prompt, output in zip(PROMPTS, offline, strict=True):
            reply = await served.client.completions.create(
                model=MODEL, prompt=prompt, **http_fields(fields)
            )
            for choice, completion in zip(reply.choices, output.outputs, strict=True):
                assert completion.text == choice.text
                assert completion.token_ids == choice.token_ids  # type: ignore[attr-defined]
                assert completion.finish_reason == choice.finish_reason
                assert completion.stop_reason == choice.stop_reason  # type: ignore[attr-defined]
                if "logprobs" in fields:
                    assert choice.logprobs is not None and completion.logprobs is not None
                    assert choice.logprobs.token_logprobs == [
                        position[token].logprob
                        for position, token in zip(
                            completion.logprobs, completion.token_ids, strict=True
                        )
                    ]


async def test_chats_equal_the_served_ones(toy_llm: MakeLLM, socket_dir: Path) -> None:
    messages = [
        {"role": "system", "content": "the mat"},
        {"role": "user", "content": [{"type": "text", "text": "a cat"}]},
    ]
    (output,) = toy_llm(speculative_config=SPECULATION).chat(
        messages, SamplingParams(temperature=0.9, seed=3, max_tokens=30), use_tqdm=False
    )
    async with stack(socket_dir) as served:
        reply = await served.http.post(
            "/v1/chat/completions",
            json={
                "messages": messages,
                "temperature": 0.9,
                "seed": 3,
                "max_tokens": 30,
                "return_token_ids": True,
            },
        )
    body = reply.json()
    assert body["choices"][0]["message"]["content"] == output.outputs[0].text
    assert body["choices"][0]["token_ids"] == output.outputs[0].token_ids
    assert body["prompt_token_ids"] == output.prompt_token_ids


async def test_prompt_logprobs_equal_the_served_ones(toy_llm: MakeLLM, socket_dir: Path) -> None:
    params = SamplingParams(max_tokens=1, seed=1, prompt_logprobs=2)
    (output,) = toy_llm().generate("the cat sat", params, use_tqdm=False)
    async with stack(socket_dir) as served:
        reply = await served.http.post(
            "/v1/completions",
            json={"prompt": "the cat sat", "max_tokens": 1, "seed": 1, "prompt_logprobs": 2},
        )
    assert output.prompt_logprobs is not None
    told = [
        position
        and {
            str(token): {"logprob": p.logprob, "rank": p.rank, "decoded_token": p.decoded_token}
            for token, p in position.items()
        }
        for position in output.prompt_logprobs
    ]
    assert told == reply.json()["choices"][0]["prompt_logprobs"]
    assert told[0] is None and len(told) == len(output.prompt_token_ids)
