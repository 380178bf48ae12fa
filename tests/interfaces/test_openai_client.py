"""The official client against gateway, verifier, scheduler and a toy target that speculates."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.interfaces.stack import MODEL, Stack

PLAIN = {"speculative_decoding": {"enabled": False}}


async def completion(client: openai.AsyncOpenAI, prompt: Any = "the cat", **options: Any) -> Any:
    options = {"max_tokens": 24, "temperature": 0.8, "seed": 3, **options}
    return await client.completions.create(model=MODEL, prompt=prompt, **options)


async def chat(client: openai.AsyncOpenAI, **options: Any) -> Any:
    options = {"max_completion_tokens": 24, "temperature": 0.8, "seed": 3, **options}
    return await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a dog"}], **options
    )


async def streamed(stream: Any) -> tuple[str, list[Any]]:
    chunks = [chunk async for chunk in stream]
    texts = [
        getattr(choice, "text", None) or getattr(getattr(choice, "delta", None), "content", None)
        for chunk in chunks
        for choice in chunk.choices
    ]
    return "".join(text for text in texts if text), chunks


async def test_a_completion_whole_and_streamed_with_and_without_drafts(
    client: openai.AsyncOpenAI,
) -> None:
    whole = await completion(client)
    text, chunks = await streamed(
        await completion(client, stream=True, stream_options={"include_usage": True})
    )
    plain = await completion(client, extra_body=PLAIN)
    assert whole.choices[0].text == text == plain.choices[0].text != ""
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens
    speculation = whole.model_extra["metrics"]["speculative_decoding"]
    assert speculation["num_accepted_draft_tokens"] > 0
    assert plain.model_extra["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


async def test_a_chat_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await chat(client)
    text, chunks = await streamed(await chat(client, stream=True))
    assert whole.choices[0].message.content == text != ""
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


async def test_several_prompts_with_several_choices(client: openai.AsyncOpenAI) -> None:
    both = await completion(client, ["the cat", "a dog"], n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    alone = [await completion(client, prompt, n=2) for prompt in ("the cat", "a dog")]
    assert [c.text for c in both.choices] == [c.text for one in alone for c in one.choices]
    assert both.choices[0].text != both.choices[1].text
    second = await completion(client, "the cat", seed=4)
    assert both.choices[1].text == second.choices[0].text
    assert both.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)


async def test_prompts_of_ids_and_of_text_are_the_same(
    running: Stack, client: openai.AsyncOpenAI
) -> None:
    ids = [running.ids("the cat"), running.ids("a dog")]
    by_text = await completion(client, ["the cat", "a dog"])
    by_ids = await completion(client, ids)
    assert [c.text for c in by_text.choices] == [c.text for c in by_ids.choices]
    one = await completion(client, ids[0])
    assert one.choices[0].text == by_text.choices[0].text


async def test_several_prompts_streamed_keep_their_own_order(client: openai.AsyncOpenAI) -> None:
    whole = await completion(client, ["the cat", "a dog", "on the mat"])
    texts = ["", "", ""]
    async for chunk in await completion(client, ["the cat", "a dog", "on the mat"], stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


async def test_a_stop_string_and_a_stop_id(running: Stack, client: openai.AsyncOpenAI) -> None:
    whole = await completion(client, extra_body={"return_token_ids": True})
    text, ids = whole.choices[0].text, whole.choices[0].model_extra["token_ids"]
    word = text[12:15]
    stopped = await completion(client, stop=[word])
    assert stopped.choices[0].text == text.partition(word)[0]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_extra["stop_reason"] == word
    end = ids[10]
    by_id = await completion(client, extra_body={"stop_token_ids": [end]})
    kept = ids[: ids.index(end)]
    assert by_id.choices[0].text == running.text.decode(kept, skip_special_tokens=True)
    assert by_id.choices[0].model_extra["stop_reason"] == end


async def test_truncated_prompts_are_shown_as_they_were_used(
    running: Stack, client: openai.AsyncOpenAI
) -> None:
    ids = running.ids("the cat sat on the mat")
    prompts: list[Any] = ["the cat sat on the mat", ids]
    for prompt in prompts:
        for side, kept in (("left", ids[-2:]), ("right", ids[:2])):
            extras = {
                "truncate_prompt_tokens": 2,
                "truncation_side": side,
                "return_token_ids": True,
            }
            answer = await completion(client, prompt, echo=True, extra_body=extras)
            choice = answer.choices[0]
            assert choice.model_extra["prompt_token_ids"] == kept
            assert choice.text.startswith(running.text.decode(kept, skip_special_tokens=False))
            assert answer.usage.prompt_tokens == 2
            same = await completion(client, kept)
            assert choice.text.endswith(same.choices[0].text)


async def test_a_prompt_is_cut_to_what_fits(client: openai.AsyncOpenAI) -> None:
    long = "the cat sat " * 300
    with pytest.raises(openai.BadRequestError) as caught:
        await completion(client, long, max_tokens=200)
    assert caught.value.code == "context_length_exceeded"
    extras = {"truncate_prompt_tokens": -1}
    answer = await completion(client, long, max_tokens=200, extra_body=extras)
    assert answer.usage.prompt_tokens == 56
    with pytest.raises(openai.BadRequestError) as caught:
        await completion(client, extra_body={"truncate_prompt_tokens": 257})
    assert caught.value.param == "truncate_prompt_tokens"


async def test_chunks_of_several_tokens(client: openai.AsyncOpenAI) -> None:
    plain = {"return_token_ids": True, "speculative_decoding": {"enabled": False}}
    text, _ = await streamed(await completion(client, stream=True, extra_body=plain))
    asked = {**plain, "stream_interval": 10}
    same, chunks = await streamed(await completion(client, stream=True, extra_body=asked))
    assert same == text
    sizes = [len(chunk.choices[0].model_extra.get("token_ids") or ()) for chunk in chunks]
    sizes = [size for size in sizes if size]
    assert sum(sizes) == 24
    # Read slowly, an answer comes in fewer chunks with or without it: only the bound is sure.
    assert len(sizes) <= 4
    assert all(size >= 10 for size in sizes[1:-1])


async def test_what_a_template_reads(client: openai.AsyncOpenAI) -> None:
    plain = await chat(client)
    moody = await chat(client, extra_body={"chat_template_kwargs": {"mood": "STOP"}})
    assert moody.usage.prompt_tokens > plain.usage.prompt_tokens
    # The toy's template reads neither; they change nothing and harm nothing.
    same = await chat(client, reasoning_effort="low", extra_body={"documents": [{"title": "x"}]})
    assert same.choices[0].message.content == plain.choices[0].message.content


async def test_a_template_of_the_request_is_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await chat(client, extra_body={"chat_template": "{{ messages[0].content }}"})
    assert caught.value.param == "chat_template"
    assert "--trust-request-chat-template" in caught.value.message


async def test_fields_that_change_nothing(client: openai.AsyncOpenAI) -> None:
    plain = await chat(client)
    same = await chat(
        client,
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        extra_body={"session_id": "1", "spaces_between_special_tokens": False, "unheard_of": 1},
    )
    assert same.choices[0].message.content == plain.choices[0].message.content


async def test_refusals_of_gateway_and_verifier_look_alike(client: openai.AsyncOpenAI) -> None:
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("temperature", {"temperature": 3}),
        ("best_of", {"best_of": 2}),
        ("max_tokens", {"max_tokens": 400}),
        ("stop_token_ids", {"extra_body": {"stop_token_ids": [9999]}}),
        ("prompt", {"prompt": [9999]}),
    ]
    for field, options in refusals:
        with pytest.raises(openai.BadRequestError) as caught:
            await completion(client, **options)
        assert caught.value.param == field
        assert caught.value.type == "BadRequestError"
