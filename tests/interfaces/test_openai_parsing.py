"""Structured answers and forced tool calls through the official client's own helpers."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.interfaces.stack import MODEL, Stack
from tests.interfaces.test_openai_client import PLAIN, chat, completion
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def client(shared: Stack) -> openai.AsyncOpenAI:
    return shared.client


class Pet(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["cat", "dog"]
    sat: bool


class Feed(BaseModel):
    """Feeds a pet."""

    kind: Literal["cat", "dog"]
    twice: bool


# A JSON grammar allows whitespace without end, and the toy target likes spaces.
NO_SPACES = {str(byte_level_tokenizer().encode(space)[0]): -100 for space in " \n\t\r"}
OPTIONS: dict[str, Any] = {
    "max_completion_tokens": 120,
    "seed": 3,
    "temperature": 0.8,
    "logit_bias": NO_SPACES,
}
MESSAGES: list[Any] = [{"role": "user", "content": "a cat"}]


async def test_the_clients_parse_helper(client: openai.AsyncOpenAI) -> None:
    seen = set()
    for seed in range(4):
        answer = await client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Pet, **{**OPTIONS, "seed": seed}
        )
        pet = answer.choices[0].message.parsed
        assert pet is not None
        assert answer.choices[0].finish_reason == "stop"
        seen.add((pet.kind, pet.sat))
    assert len(seen) > 1, "the grammar, not the model, chose"


async def test_the_clients_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Pet, **OPTIONS
    ) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_completion()
    whole = await client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Pet, **OPTIONS
    )
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


@pytest.mark.parametrize(
    ("constraint", "shape"),
    [
        ({"choice": ["the cat", "a dog"]}, r"the cat|a dog"),
        ({"regex": "[a-d]{3,9}[.]"}, r"[a-d]{3,9}\."),
        ({"grammar": 'root ::= ("ab" | "cd")+ "."'}, r"(ab|cd)+\."),
        ({"json": {"enum": ["x", 1]}}, r'"x"|1'),
    ],
)
async def test_every_kind_of_constraint_holds_and_drafts_change_nothing(
    client: openai.AsyncOpenAI, constraint: dict[str, Any], shape: str
) -> None:
    for options in ({"seed": 1}, {"temperature": 0}):
        extras = {"structured_outputs": constraint}
        held = await completion(client, max_tokens=100, extra_body=extras, **options)
        plain = await completion(client, max_tokens=100, extra_body={**extras, **PLAIN}, **options)
        text = held.choices[0].text
        assert text == plain.choices[0].text
        assert re.fullmatch(shape, text) or held.choices[0].finish_reason == "length"
        streamed = await completion(
            client, max_tokens=100, extra_body=extras, stream=True, **options
        )
        assert "".join([chunk.choices[0].text async for chunk in streamed]) == text


async def test_a_forced_call_through_the_clients_tool_helper(client: openai.AsyncOpenAI) -> None:
    tools = [openai.pydantic_function_tool(Feed, name="feed")]
    named: Any = {"type": "function", "function": {"name": "feed"}}
    for choice in ("required", named):
        answer = await client.chat.completions.parse(
            model=MODEL,
            messages=MESSAGES,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=False,
            **OPTIONS,
        )
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.function.name == "feed"
        assert isinstance(call.function.parsed_arguments, Feed)


async def test_a_streamed_call_is_the_whole_one(client: openai.AsyncOpenAI) -> None:
    tools = [openai.pydantic_function_tool(Feed, name="feed")]
    options = {**OPTIONS, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    whole = await chat(client, **options)
    names, arguments = "", ""
    async for chunk in await chat(client, stream=True, **options):
        for call in chunk.choices[0].delta.tool_calls or ():
            names += call.function.name or ""
            arguments += call.function.arguments or ""
    (call,) = whole.choices[0].message.tool_calls
    assert (names, arguments) == (call.function.name, call.function.arguments)
    assert Feed.model_validate(json.loads(arguments))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("response_format", {"response_format": {"type": "yaml"}}),
        ("structured_outputs", {"extra_body": {"structured_outputs": {"regex": "("}}}),
        ("structured_outputs", {"extra_body": {"structured_outputs": {"grammar": "root ::="}}}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tools", {"tools": [{"type": "function"}]}),
    ],
)
async def test_what_cannot_be_held_is_named(
    client: openai.AsyncOpenAI, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await chat(client, **options)
    assert caught.value.param is not None
    assert caught.value.param.split(".")[0].split("[")[0] == field
