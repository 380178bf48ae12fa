"""Tool calls in streams: OpenAI's deltas, and the official client's helpers over them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from speculation.v1 import types_pb2

from tests.gateway.fake_verifier import Answer, FakeVerifier
from tests.gateway.tools.test_tool_calls import ASK, CALL, CLOCK, NAMED, WEATHER, says

ARGUMENTS = '{"city": "Oslo"}'


async def stream(client: openai.AsyncOpenAI, **fields: Any) -> list[Any]:
    chunks = await client.chat.completions.create(
        **{**ASK, "tools": [WEATHER, CLOCK], "stream": True, **fields}
    )
    return [chunk.choices[0] async for chunk in chunks if chunk.choices]


def contents(choices: list[Any]) -> str:
    return "".join(choice.delta.content or "" for choice in choices)


def calls(choices: list[Any]) -> list[tuple[str, str]]:
    """(name, arguments) put together as clients do it, with what they rely on checked."""
    found: list[tuple[str, str]] = []
    ids: set[str] = set()
    for choice in choices:
        for part in choice.delta.tool_calls or []:
            if part.id is not None:
                assert part.index == len(found), "calls come in order"
                assert part.type == "function" and part.function.name
                assert part.id not in ids
                ids.add(part.id)
                found.append((part.function.name, ""))
            else:
                assert part.function.name is None and part.type is None
            assert part.index == len(found) - 1, "fragments belong to the running call"
            name, arguments = found[part.index]
            found[part.index] = (name, arguments + (part.function.arguments or ""))
    return found


async def test_a_call_is_told_piece_by_piece(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    before = ("I look.", "\n<tool", '_call>\n{"name": "get_weather", ', '"arguments"')
    verifier.script = says(*before, ': {"ci', 'ty": "O', 'slo"}}', "\n</tool_call>")
    choices = await stream(client)
    deltas = [choice.delta for choice in choices]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert deltas[1].content == "I look."
    begun = deltas[2].tool_calls[0]
    assert begun.id.startswith("chatcmpl-tool-")
    assert (begun.index, begun.function.name, begun.function.arguments) == (
        0,
        "get_weather",
        '{"ci',
    )
    fragments = [delta.tool_calls[0].function.arguments for delta in deltas[3:5]]
    assert fragments == ['ty": "O', 'slo"}']
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + [
        "tool_calls"
    ]
    assert choices[-1].delta.tool_calls is None
    assert contents(choices) == "I look."


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_however_it_is_cut(
    client: openai.AsyncOpenAI, verifier: FakeVerifier, size: int
) -> None:
    text = f'Well.\n{CALL}\n<tool_call>{{"name": "clock"}}</tool_call>\nDone. <tool_'
    verifier.script = says(*(text[i : i + size] for i in range(0, len(text), size)))
    choices = await stream(client)
    assert contents(choices) == "Well.\nDone. <tool_"
    assert calls(choices) == [("get_weather", ARGUMENTS), ("clock", "{}")]
    assert choices[-1].finish_reason == "tool_calls"


async def test_no_call_is_plain_text(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says("A <", "b> c", "\n")
    choices = await stream(client)
    assert contents(choices) == "A <b> c\n"
    assert calls(choices) == []
    assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_text_that_is_no_call_is_told_whole(
    client: openai.AsyncOpenAI, verifier: FakeVerifier, size: int
) -> None:
    text = ' <tool_call>{"name": "nobody", "arguments": {}}</tool_call> \n'
    verifier.script = says(*(text[i : i + size] for i in range(0, len(text), size)))
    choices = await stream(client)
    assert contents(choices) == text
    assert choices[-1].finish_reason == "stop"


async def test_a_call_that_breaks_behind_its_beginning(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = says('<tool_call>{"name": "clock", "arguments": {"a": ', "oops}}</tool_call>")
    choices = await stream(client)
    # What was told cannot be taken back; the rest is content, and no call is claimed.
    assert calls(choices) == [("clock", '{"a": ')]
    assert contents(choices) == "oops}}</tool_call>"
    assert choices[-1].finish_reason == "stop"


async def test_a_call_cut_by_the_length(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says(CALL[: CALL.index("Oslo")], reason=types_pb2.FINISH_REASON_LENGTH)
    choices = await stream(client)
    assert calls(choices) == [("get_weather", ARGUMENTS[: ARGUMENTS.index("Oslo")])]
    assert contents(choices) == ""
    assert choices[-1].finish_reason == "length"


async def test_a_named_call(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says('{"city": ', '"Oslo"', "}")
    choices = await stream(client, tool_choice=NAMED)
    assert calls(choices) == [("get_weather", ARGUMENTS)]
    assert contents(choices) == ""
    assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_required_calls(
    client: openai.AsyncOpenAI, verifier: FakeVerifier, size: int
) -> None:
    text = (
        '[{"name": "get_weather", "parameters": {"city": "Oslo"}},\n'
        '{"name": "clock", "parameters": {}}]'
    )
    verifier.script = says(*(text[i : i + size] for i in range(0, len(text), size)))
    choices = await stream(client, tool_choice="required")
    assert calls(choices) == [("get_weather", ARGUMENTS), ("clock", "{}")]
    assert contents(choices) == ""
    assert choices[-1].finish_reason == "tool_calls"


async def test_no_parallel_calls(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    verifier.script = says(*CALL, *CALL)
    choices = await stream(client, parallel_tool_calls=False)
    assert calls(choices) == [("get_weather", ARGUMENTS)]
    assert choices[-1].finish_reason == "tool_calls"


async def test_choices_do_not_mix(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    texts = [f"a{CALL}", "<tool_call>b", CALL.replace("Oslo", "Rome")]
    verifier.script = lambda request: Answer(
        pieces=[(char, 0) for char in texts[request.sampling.seed]]
    )
    chunks = await client.chat.completions.create(**ASK, tools=[WEATHER], n=3, seed=0, stream=True)
    by_index: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    async for chunk in chunks:
        by_index[chunk.choices[0].index].append(chunk.choices[0])
    assert calls(by_index[0]) == [("get_weather", ARGUMENTS)]
    assert (contents(by_index[0]), contents(by_index[1])) == ("a", "<tool_call>b")
    assert calls(by_index[2]) == [("get_weather", '{"city": "Rome"}')]
    assert [by_index[i][-1].finish_reason for i in range(3)] == ["tool_calls", "stop", "tool_calls"]


async def test_tokens_of_held_back_text_are_told_when_they_come(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    verifier.script = says("<tool", "_call>", CALL[11:])
    body = {**ASK, "tools": [WEATHER], "stream": True, "return_token_ids": True}
    lines = (await http.post("/v1/chat/completions", json=body)).text.split("\n\n")
    chunks = [
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")
    ]
    shown = [chunk["choices"][0] for chunk in chunks]
    assert [c.get("token_ids") for c in shown[1:4]] == [
        [ord(char) for char in text] for text in ("<tool", "_call>", CALL[11:])
    ]
    assert shown[1]["delta"] == {}


class Weather(BaseModel):
    city: str


async def test_the_clients_stream_helper(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = says("Hm. ", *CALL, "\n", '<tool_call>{"name": "clock"}</tool_call>')
    deltas: list[str] = []
    done: list[tuple[int, str, str]] = []
    async with client.chat.completions.stream(**ASK, tools=[WEATHER, CLOCK]) as events:  # type: ignore[list-item]
        async for event in events:
            if event.type == "tool_calls.function.arguments.delta" and event.index == 0:
                deltas.append(event.arguments_delta)
            if event.type == "tool_calls.function.arguments.done":
                done.append((event.index, event.name, event.arguments))
        final = await events.get_final_completion()
    assert "".join(deltas) == ARGUMENTS
    assert len(deltas) > 5
    assert done == [(0, "get_weather", ARGUMENTS), (1, "clock", "{}")]
    message = final.choices[0].message
    assert message.content == "Hm."
    assert [c.function.name for c in message.tool_calls or []] == ["get_weather", "clock"]
    assert final.choices[0].finish_reason == "tool_calls"


async def test_the_clients_typed_tools(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    verifier.script = says(*CALL)
    answer = await client.chat.completions.parse(**ASK, tools=[tool])
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Oslo")
    async with client.chat.completions.stream(**ASK, tools=[tool]) as events:
        final = await events.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Oslo")
