"""Log-probabilities through the official client: whole and streamed, of answers and of prompts."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest

from tests.interfaces.stack import MODEL, Stack
from tests.interfaces.test_openai_client import PLAIN, chat, completion


def spelled(entries: Any) -> str:
    """The text that a chat's entries spell, byte for byte."""
    return b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace")


async def test_a_completions_logprobs(running: Stack, client: openai.AsyncOpenAI) -> None:
    whole = (await completion(client, logprobs=3)).choices[0]
    told = whole.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == 24
    assert "".join(told.tokens) == whole.text
    assert told.text_offset[0] == 0
    assert all(-60 < value <= 0 for value in told.token_logprobs)
    for token, value, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        # Half characters look alike and share a key.
        assert 1 <= len(top) <= 4
        assert top[token] == value
        assert sum(map(math.exp, top.values())) <= 1 + 1e-5


async def test_logprobs_are_the_targets_own_whatever_is_done_to_it(
    client: openai.AsyncOpenAI,
) -> None:
    first = (await completion(client, logprobs=3, temperature=0.3)).choices[0].logprobs
    other = (await completion(client, logprobs=3, top_p=0.5, temperature=1.3)).choices[0].logprobs
    assert first.top_logprobs[0] == other.top_logprobs[0] or first.tokens[0] != other.tokens[0]
    best = sorted(first.top_logprobs[0].values(), reverse=True)[:3]
    assert sorted(other.top_logprobs[0].values(), reverse=True)[:3] == best


@pytest.mark.parametrize("options", [{"logprobs": 2}, {"logprobs": 0}])
async def test_drafts_change_no_logprob(
    client: openai.AsyncOpenAI, options: dict[str, Any]
) -> None:
    drafted = await completion(client, **options)
    plain = await completion(client, extra_body=PLAIN, **options)
    assert drafted.choices[0].logprobs == plain.choices[0].logprobs
    assert drafted.choices[0].text == plain.choices[0].text


async def test_streamed_logprobs_are_the_whole_ones(client: openai.AsyncOpenAI) -> None:
    whole = (await completion(client, logprobs=2)).choices[0].logprobs
    tokens: list[str] = []
    values: list[float] = []
    async for chunk in await completion(client, logprobs=2, stream=True):
        if chunk.choices and chunk.choices[0].logprobs is not None:
            tokens += chunk.choices[0].logprobs.tokens
            values += chunk.choices[0].logprobs.token_logprobs
    assert (tokens, values) == (whole.tokens, whole.token_logprobs)


async def test_a_chats_logprobs_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = (await chat(client, logprobs=True, top_logprobs=2)).choices[0]
    entries = whole.logprobs.content
    assert len(entries) == 24
    assert spelled(entries) == whole.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    streamed: list[Any] = []
    async for chunk in await chat(client, logprobs=True, top_logprobs=2, stream=True):
        if chunk.choices and chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    assert [(e.token, e.logprob) for e in streamed] == [(e.token, e.logprob) for e in entries]


async def test_a_prompt_is_scored_by_echo(running: Stack, client: openai.AsyncOpenAI) -> None:
    prompt = "the cat sat on"
    scored = (await completion(client, prompt, echo=True, logprobs=1, max_tokens=2)).choices[0]
    told, count = scored.logprobs, len(running.ids(prompt))
    assert scored.text.startswith(prompt)
    assert len(told.tokens) == count + 2
    assert told.token_logprobs[0] is None
    assert all(value is not None for value in told.token_logprobs[1:])
    # The prompt's own log-probabilities are those of the same tokens in an answer.
    extras = {"prompt_logprobs": 1}
    listed = (await completion(client, prompt, extra_body=extras)).choices[0]
    values = listed.model_extra["prompt_logprobs"]
    assert values[0] is None
    ids = running.ids(prompt)
    by_id = [values[i][str(ids[i])]["logprob"] for i in range(1, count)]
    assert by_id == told.token_logprobs[1:count]


async def test_a_truncated_prompt_is_scored_as_it_was_used(
    running: Stack, client: openai.AsyncOpenAI
) -> None:
    extras = {"truncate_prompt_tokens": 2, "prompt_logprobs": 0}
    answer = await completion(client, "the cat sat on", extra_body=extras)
    values = answer.choices[0].model_extra["prompt_logprobs"]
    assert len(values) == 2
    assert str(running.ids("the cat sat on")[-1]) in values[1]


async def test_tokens_as_ids(running: Stack, client: openai.AsyncOpenAI) -> None:
    extras = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = (await completion(client, logprobs=1, extra_body=extras)).choices[0]
    ids = choice.model_extra["token_ids"]
    assert choice.logprobs.tokens == [f"token_id:{token}" for token in ids]


async def test_top_logprobs_need_logprobs(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await chat(client, top_logprobs=2)
    assert caught.value.param == "top_logprobs"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="x", logprobs=1000)
    assert caught.value.param == "logprobs"
