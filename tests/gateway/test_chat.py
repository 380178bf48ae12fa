"""`/v1/chat/completions`, not streamed, through the official client."""

from __future__ import annotations

import json

import openai

from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier


async def test_answer_has_openais_shape(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}]
    )
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello!")
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.model_extra["metrics"]["speculative_decoding"]["num_spec_steps"] == 2
    (request,) = verifier.requests
    assert json.loads(request.chat.messages_json) == [{"role": "user", "content": "Hi"}]
    assert request.chat.add_generation_prompt
    assert not request.sampling.HasField("max_tokens")


async def test_text_parts_are_joined(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ],
    )
    messages = json.loads(verifier.requests[0].chat.messages_json)
    assert messages == [{"role": "user", "content": "a\nb"}]


async def test_assistant_messages_may_have_no_content(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "assistant", "content": None}, {"role": "user", "content": "x"}],
    )
    assert json.loads(verifier.requests[0].chat.messages_json)[0]["content"] == ""


async def test_max_completion_tokens_goes_before_max_tokens(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    messages = [{"role": "user", "content": "x"}]
    await client.chat.completions.create(
        model=MODEL, messages=messages, max_completion_tokens=5, max_tokens=9
    )
    await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=9)
    assert [r.sampling.max_tokens for r in verifier.requests] == [5, 9]


async def test_final_message_can_be_continued(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "assistant", "content": "So"}],
        extra_body={"continue_final_message": True, "chat_template_kwargs": {"style": "short"}},
    )
    chat = verifier.requests[0].chat
    assert chat.continue_final_message
    assert not chat.add_generation_prompt
    assert json.loads(chat.template_kwargs_json) == {"style": "short"}


async def test_n_choices(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = lambda request: Answer(pieces=[(str(request.sampling.seed), 0)])
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], n=3, seed=1
    )
    assert [(c.index, c.message.content) for c in answer.choices] == [(0, "1"), (1, "2"), (2, "3")]


async def test_return_token_ids_generates_from_the_ids_it_shows(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        extra_body={"return_token_ids": True},
    )
    assert answer.model_extra["prompt_token_ids"] == [ord(c) for c in "user:x;"]
    assert list(verifier.requests[0].token_ids.ids) == answer.model_extra["prompt_token_ids"]
    assert answer.choices[0].model_extra["token_ids"] == [ord(c) for c in "Hello!"]
