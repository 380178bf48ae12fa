"""Log-probabilities over HTTP, with the official client: whole and streamed."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

MESSAGES: Any = [{"role": "user", "content": "hi"}]
# The fake verifier's answer, token by token, and each token's log-probability.
TOKENS = list("Hello!")
VALUES = [-ord(c) / 4 for c in TOKENS]


async def test_completion(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    answer = await client.completions.create(model=MODEL, prompt="ab", logprobs=2)
    found = answer.choices[0].logprobs
    assert found is not None
    assert verifier.requests[-1].sampling.logprobs == 2
    assert not verifier.requests[-1].sampling.HasField("prompt_logprobs")
    assert found.tokens == TOKENS
    assert found.token_logprobs == VALUES
    assert found.text_offset == [0, 1, 2, 3, 4, 5]
    # The token itself first, then the most likely ones.
    assert found.top_logprobs is not None
    assert list(found.top_logprobs[0].items()) == [("H", VALUES[0]), ("A", 0.0), ("B", -0.125)]


async def test_completion_without(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    answer = await client.completions.create(model=MODEL, prompt="ab")
    assert answer.choices[0].logprobs is None
    assert not verifier.requests[-1].sampling.HasField("logprobs")


async def test_completion_of_the_token_alone(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="ab", logprobs=0)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.top_logprobs == [
        {c: v} for c, v in zip(TOKENS, VALUES, strict=True)
    ]


async def test_a_stream_says_what_the_whole_says(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt="ab", logprobs=1, echo=True)
    tokens: list[Any] = []
    values: list[Any] = []
    tops: list[Any] = []
    offsets: list[Any] = []
    stream = await client.completions.create(
        model=MODEL, prompt="ab", logprobs=1, echo=True, stream=True
    )
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].text
        found = chunk.choices[0].logprobs
        if found is not None:
            tokens += found.tokens or []
            values += found.token_logprobs or []
            tops += found.top_logprobs or []
            offsets += found.text_offset or []
    expected = whole.choices[0].logprobs
    assert expected is not None
    assert text == whole.choices[0].text
    assert (tokens, values, tops, offsets) == (
        expected.tokens,
        expected.token_logprobs,
        expected.top_logprobs,
        expected.text_offset,
    )


async def test_echo_puts_the_prompts_tokens_first(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    answer = await client.completions.create(model=MODEL, prompt="ab", logprobs=1, echo=True)
    found = answer.choices[0].logprobs
    assert found is not None and found.top_logprobs is not None
    assert verifier.requests[-1].sampling.prompt_logprobs == 1
    assert found.tokens == ["a", "b", *TOKENS]
    assert found.token_logprobs == [None, -ord("b") / 4, *VALUES]
    assert found.top_logprobs[0] is None
    assert found.text_offset == [0, 1, 2, 3, 4, 5, 6, 7]
    # They were not asked for by vLLM's name.
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["prompt_logprobs"] is None


async def test_scoring_a_prompt_without_an_answer(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt="abc", logprobs=0, echo=True, max_tokens=0
    )
    choice = answer.choices[0]
    assert verifier.requests[-1].sampling.max_tokens == 1
    assert choice.text == "abc"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    stream = await client.completions.create(
        model=MODEL, prompt="abc", logprobs=0, echo=True, max_tokens=0, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc"


@pytest.mark.parametrize("top", [0, 3])
async def test_chat(client: openai.AsyncOpenAI, verifier: FakeVerifier, top: int) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=top
    )
    assert verifier.requests[-1].sampling.logprobs == top
    found = answer.choices[0].logprobs
    assert found is not None and found.content is not None
    assert [entry.token for entry in found.content] == TOKENS
    assert [entry.logprob for entry in found.content] == VALUES
    assert [entry.bytes for entry in found.content] == [[ord(c)] for c in TOKENS]
    # The most likely ones, whatever was chosen.
    assert [(t.token, t.bytes) for t in found.content[0].top_logprobs] == [
        (c, [ord(c)]) for c in "ABC"[:top]
    ]


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=1, stream=True
    )
    entries: list[Any] = []
    async for chunk in stream:
        found = chunk.choices[0].logprobs
        if found is not None:
            entries += found.content or []
    assert [entry.token for entry in entries] == TOKENS
    assert [entry.logprob for entry in entries] == VALUES
    assert [entry.top_logprobs[0].token for entry in entries] == ["A"] * 6


async def test_chat_without(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    for extra in ({}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_body=extra
        )
        assert answer.choices[0].logprobs is None
        assert not verifier.requests[-1].sampling.HasField("logprobs")


async def test_tokens_that_have_no_text_yet_are_streamed(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    """A token that is half a character is told when it is chosen, not when its text is known."""
    verifier.script = lambda request: Answer(pieces=[("a", 0), ("", 0), ("b", 0)], silent=1)
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, stream=True
    )
    told = [
        (chunk.choices[0].delta.content, len(chunk.choices[0].logprobs.content or []))
        async for chunk in stream
        if chunk.choices[0].logprobs
    ]
    assert told == [("a", 1), ("", 1), ("b", 1)]


@pytest.mark.parametrize("top", [0, 2, -1])
async def test_prompt_logprobs_of_a_completion(
    http: httpx.AsyncClient, verifier: FakeVerifier, top: int
) -> None:
    response = await http.post("/v1/completions", json={"prompt": "aB", "prompt_logprobs": top})
    choice = response.json()["choices"][0]
    assert verifier.requests[-1].sampling.prompt_logprobs == top
    assert choice["logprobs"] is None
    first, second = choice["prompt_logprobs"]
    assert first is None
    own = {"logprob": -66 / 4, "rank": 66, "decoded_token": "B"}
    likely = {
        str(65 + i): {"logprob": -i / 8, "rank": i + 1, "decoded_token": chr(65 + i)}
        for i in range(4 if top < 0 else top)
    }
    assert second == likely | {"66": own}
    assert next(iter(second)) == "66"


async def test_prompt_logprobs_of_a_chat_and_beside_those_of_an_echo(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    chat = await http.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "prompt_logprobs": 1}
    )
    assert len(chat.json()["prompt_logprobs"]) == len("user:hi;")
    assert chat.json()["choices"][0]["logprobs"] is None
    body = {"prompt": "ab", "prompt_logprobs": 1, "logprobs": 3, "echo": True}
    both = (await http.post("/v1/completions", json=body)).json()["choices"][0]
    assert verifier.requests[-1].sampling.prompt_logprobs == 3
    assert set(both["prompt_logprobs"][1]) == {"98", "65"}
    assert set(both["logprobs"]["top_logprobs"][1]) == {"b", "A", "B", "C"}


async def test_tokens_as_token_ids(client: openai.AsyncOpenAI) -> None:
    as_ids = {"return_tokens_as_token_ids": True}
    text = await client.completions.create(
        model=MODEL, prompt="ab", logprobs=1, echo=True, extra_body=as_ids
    )
    found = text.choices[0].logprobs
    assert found is not None and found.tokens is not None and found.top_logprobs is not None
    assert found.tokens[:3] == ["token_id:97", "token_id:98", "token_id:72"]
    assert list(found.top_logprobs[2]) == ["token_id:72", "token_id:65"]
    assert found.text_offset == [0, 1, 2, 3, 4, 5, 6, 7]
    chat = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=1, extra_body=as_ids
    )
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content
    entry = chat.choices[0].logprobs.content[0]
    assert (entry.token, entry.top_logprobs[0].token) == ("token_id:72", "token_id:65")
    assert entry.bytes == [72]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_has_its_own(client: openai.AsyncOpenAI, stream: bool) -> None:
    tokens: dict[int, list[str]] = {i: [] for i in range(4)}
    offsets: dict[int, list[int]] = {i: [] for i in range(4)}
    arguments: Any = {
        "model": MODEL, "prompt": ["ab", "c"], "n": 2, "logprobs": 0, "echo": True,
    }  # fmt: skip
    if stream:
        async for chunk in await client.completions.create(**arguments, stream=True):
            for choice in chunk.choices:
                if choice.logprobs is not None:
                    tokens[choice.index] += choice.logprobs.tokens or []
                    offsets[choice.index] += choice.logprobs.text_offset or []
    else:
        for choice in (await client.completions.create(**arguments)).choices:
            tokens[choice.index] = choice.logprobs.tokens or []
            offsets[choice.index] = choice.logprobs.text_offset or []
    assert tokens == {i: [*prompt, *TOKENS] for i, prompt in enumerate(["ab", "ab", "c", "c"])}
    assert all(offsets[i] == list(range(len(tokens[i]))) for i in range(4))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([*MESSAGES, {"role": "assistant", "content": "Well, "}], "Well, Hello!"),
        (MESSAGES, "Hello!"),
    ],
)
async def test_a_chat_echoes_what_it_continues(
    client: openai.AsyncOpenAI, messages: Any, text: str, stream: bool
) -> None:
    arguments: Any = {"model": MODEL, "messages": messages, "extra_body": {"echo": True}}
    if stream:
        chunks = await client.chat.completions.create(**arguments, stream=True)
        found = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    else:
        answer = await client.chat.completions.create(**arguments)
        found = answer.choices[0].message.content
    assert found == text
