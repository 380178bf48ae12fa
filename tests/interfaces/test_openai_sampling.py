"""Sampling extras through the official client: each does its work, and drafts change none of it."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.interfaces.stack import Stack
from tests.interfaces.test_openai_client import PLAIN, completion

IDS = {"return_token_ids": True}
MIX: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"extra_body": {"min_p": 0.2}},
    {"extra_body": {"top_k": 3, "repetition_penalty": 1.3}},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0, "frequency_penalty": 1.0},
    {"logit_bias": {"4": 8, "9": -100}},
    {"extra_body": {"bad_words": ["cat", " mat"]}},
    {"extra_body": {"allowed_token_ids": list(range(40, 80))}},
    {"extra_body": {"min_tokens": 20}, "stop": ["zzz"]},
    {"top_p": 0.4, "temperature": 1.5},
]


def merged(options: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
    return {**options, "extra_body": {**options.get("extra_body", {}), **extras}}


def ids_of(answer: Any) -> list[int]:
    ids: list[int] = answer.choices[0].model_extra["token_ids"]
    return ids


async def test_a_mixed_batch_is_what_each_request_is_alone(client: openai.AsyncOpenAI) -> None:
    together = await asyncio.gather(
        *(completion(client, **merged(options, IDS)) for options in MIX)
    )
    for options, drafted in zip(MIX, together, strict=True):
        plain = await completion(client, **merged(options, {**IDS, **PLAIN}))
        assert ids_of(drafted) == ids_of(plain), options


async def test_allowed_ids_and_biases_are_kept_to(client: openai.AsyncOpenAI) -> None:
    allowed = list(range(40, 60))
    answer = await completion(client, extra_body={"allowed_token_ids": allowed, **IDS})
    assert set(ids_of(answer)) <= set(allowed)
    forced = await completion(client, logit_bias={"44": 100}, extra_body=IDS)
    assert set(ids_of(forced)) == {44}


async def test_bad_words_do_not_occur(client: openai.AsyncOpenAI) -> None:
    free = await completion(client, seed=1, max_tokens=40)
    assert "cat" in free.choices[0].text
    words = {"bad_words": ["cat", "mat"]}
    held = await completion(client, seed=1, max_tokens=40, extra_body=words)
    assert "cat" not in held.choices[0].text
    assert "mat" not in held.choices[0].text


async def test_min_tokens_hold_back_the_end(running: Stack, client: openai.AsyncOpenAI) -> None:
    biased = {"1": 100}
    short = await completion(client, logit_bias=biased, extra_body=IDS)
    assert ids_of(short) == [1]
    held = await completion(client, logit_bias=biased, extra_body={**IDS, "min_tokens": 4})
    assert len(ids_of(held)) == 5
    assert held.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("min_p", {"extra_body": {"min_p": 1.5}}),
        ("presence_penalty", {"presence_penalty": 3}),
        ("repetition_penalty", {"extra_body": {"repetition_penalty": 0}}),
        ("logit_bias", {"logit_bias": {"9999": 1}}),
        ("allowed_token_ids", {"extra_body": {"allowed_token_ids": [9999]}}),
        ("min_tokens", {"extra_body": {"min_tokens": 30}}),
    ],
)
async def test_what_is_out_of_range_is_named(
    client: openai.AsyncOpenAI, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await completion(client, **options)
    assert caught.value.param == field
