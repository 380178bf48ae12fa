"""Tool calls in whole answers, through the official client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from speculation.v1 import types_pb2

from gateway.tools.parsers import Notation
from tests.gateway.conftest import StartGateway, client_of
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}


def says(*texts: str, **more: Any) -> Any:
    return lambda request: Answer(pieces=[(text, 0) for text in texts], **more)


async def create(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    answer = await client.chat.completions.create(**{**ASK, "tools": [WEATHER, CLOCK], **fields})
    (choice,) = answer.choices
    return choice


async def test_an_auto_call(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says("I look.\n", CALL[:20], CALL[20:])
    choice = await create(client)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    (call,) = choice.message.tool_calls
    assert call.id.startswith("chatcmpl-tool-")
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    (request,) = verifier.requests
    assert json.loads(request.chat.tools_json) == [WEATHER, CLOCK]
    assert not request.HasField("structured")
    # Marks of calls may be special tokens.
    assert request.sampling.HasField("skip_special_tokens")
    assert not request.sampling.skip_special_tokens


async def test_calls_without_content(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says("\n", CALL, "\n", '<tool_call>{"name": "clock", "arguments": {}}')
    choice = await create(client)
    assert choice.message.content is None
    assert [c.function.name for c in choice.message.tool_calls] == ["get_weather", "clock"]
    assert len({c.id for c in choice.message.tool_calls}) == 2


async def test_an_answer_without_calls_is_as_ever(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = says("Hello", " <tool> \n")
    choice = await create(client)
    assert (choice.message.content, choice.finish_reason) == ("Hello <tool> \n", "stop")
    assert not choice.message.tool_calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n{'name': 'get_weather'}\n</tool_call>",
        '<tool_call>{"name": "get_weather", "arguments": {"city": oops}}</tool_call>',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        'So: <tool_call>\n{"name": "clock", "arguments": [',
        "<tool_call>",
        "<tool_call>" * 5,
        '<tool_call>{"name": ' + "[" * 5000,
    ],
)
async def test_what_is_no_call_stays_content(
    client: openai.AsyncOpenAI, verifier: FakeVerifier, text: str
) -> None:
    verifier.script = says(text)
    choice = await create(client)
    assert (choice.message.content, choice.finish_reason) == (text, "stop")
    assert not choice.message.tool_calls


async def test_a_call_cut_by_the_length_is_content(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = says(CALL, CALL[:-20], reason=types_pb2.FINISH_REASON_LENGTH)
    choice = await create(client)
    assert choice.finish_reason == "length"
    assert len(choice.message.tool_calls) == 1
    assert choice.message.content == CALL[:-20]


async def test_choice_none_tells_the_template_and_reads_no_call(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = says(CALL)
    choice = await create(client, tool_choice="none")
    assert (choice.message.content, choice.finish_reason) == (CALL, "stop")
    (request,) = verifier.requests
    assert json.loads(request.chat.tools_json) == [WEATHER, CLOCK]
    assert not request.sampling.HasField("skip_special_tokens")


async def test_a_named_call(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says('{"city"', ': "Oslo"}')
    choice = await create(client, tool_choice=NAMED)
    # As OpenAI's and vLLM's: it was no decision of the model's.
    assert choice.finish_reason == "stop"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Oslo"}')
    (request,) = verifier.requests
    schema = json.loads(request.structured.json_schema)
    assert schema == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert not request.sampling.HasField("skip_special_tokens")


async def test_a_required_call(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says('[{"name": "clock", "parameters": {}}, ', '{"name": "clock"')
    choice = await create(client, tool_choice="required")
    assert choice.finish_reason == "tool_calls"
    verifier.script = says(
        '[{"name": "clock", "parameters": {}}, ',
        '{"name": "get_weather", "parameters": {"city": "[]"}}]',
    )
    choice = await create(client, tool_choice="required")
    assert choice.message.content is None
    assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [
        ("clock", "{}"),
        ("get_weather", '{"city": "[]"}'),
    ]
    schema = json.loads(verifier.requests[0].structured.json_schema)
    assert schema["type"] == "array" and schema["minItems"] == 1 and "maxItems" not in schema
    names = [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]]
    assert names == ["get_weather", "clock"]


async def test_no_parallel_calls(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says(CALL, CALL)
    choice = await create(client, parallel_tool_calls=False)
    assert len(choice.message.tool_calls) == 1
    await create(client, parallel_tool_calls=False, tool_choice="required")
    assert json.loads(verifier.requests[1].structured.json_schema)["maxItems"] == 1


async def test_choices_are_read_each_for_itself(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    texts = ["plain", CALL, "a" + CALL + "b"]
    verifier.script = lambda request: Answer(pieces=[(texts[request.sampling.seed], 0)])
    answer = await client.chat.completions.create(**ASK, tools=[WEATHER], n=3, seed=0)
    assert [c.finish_reason for c in answer.choices] == ["stop", "tool_calls", "tool_calls"]
    assert [c.message.content for c in answer.choices] == ["plain", None, "ab"]
    ids = {call.id for c in answer.choices for call in c.message.tool_calls or []}
    assert len(ids) == 2


async def test_usage_counts_what_was_generated(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = says(CALL)
    answer = await client.chat.completions.create(**ASK, tools=[WEATHER])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(CALL)


async def test_messages_of_calls_and_results_reach_the_template(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = says(CALL)
    asked = (await create(client)).message
    messages = [
        *ASK["messages"],
        asked,
        {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "rain"},
    ]
    verifier.script = says("It rains.")
    choice = await create(client, messages=messages)
    assert choice.message.content == "It rains."
    _, assistant, result = json.loads(verifier.requests[1].chat.messages_json)
    assert assistant["content"] is None
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'
    assert result == {
        "role": "tool",
        "tool_call_id": assistant["tool_calls"][0]["id"],
        "content": "rain",
    }


async def test_tokens_and_logprobs_are_told_beside_calls(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    verifier.script = says(CALL)
    body = {**ASK, "tools": [WEATHER], "return_token_ids": True}
    (choice,) = (await http.post("/v1/chat/completions", json=body)).json()["choices"]
    assert choice["token_ids"] == [ord(c) for c in CALL]
    assert choice["message"]["tool_calls"]
    # The prompt was turned into ids with the tools in it.
    assert verifier.requests[0].WhichOneof("prompt") == "token_ids"


@pytest.mark.parametrize(
    ("notation", "text", "id_length"),
    [
        (Notation.LLAMA3_JSON, '{"name": "clock", "parameters": {}}', 46),
        (Notation.MISTRAL, '[TOOL_CALLS]clock{"a": 1}', 9),
    ],
)
async def test_other_notations(
    verifier: FakeVerifier,
    start_gateway: StartGateway,
    notation: Notation,
    text: str,
    id_length: int,
) -> None:
    gateway = await start_gateway(verifier.address, tool_call_parser=notation)
    verifier.script = says(text)
    async with client_of(gateway) as client:
        (call,) = (await create(client)).message.tool_calls
    assert call.function.name == "clock"
    assert len(call.id) == id_length


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_forced_call_leaves_no_room_for_a_format(
    http: httpx.AsyncClient, choice: Any
) -> None:
    body = {
        **ASK,
        "tools": [WEATHER],
        "tool_choice": choice,
        "response_format": {"type": "json_object"},
    }
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"


async def test_a_format_and_auto_calls_go_together(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    schema = {"name": "s", "schema": {"type": "object"}}
    form = {"type": "json_schema", "json_schema": schema}
    verifier.script = says("{}")
    choice = await create(client, response_format=form)
    assert (choice.message.content, choice.finish_reason) == ("{}", "stop")
    verifier.script = says(CALL)
    choice = await create(client, response_format=form)
    assert choice.message.tool_calls[0].function.name == "get_weather"
    held = json.loads(verifier.requests[0].structured.structural_tag)["format"]
    assert held["type"] == "or"
    assert held["elements"][0]["json_schema"] == {"type": "object"}
