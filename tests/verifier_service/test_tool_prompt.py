"""How tools, calls and results reach the prompt, with and without a template that knows them."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from speculation.v1 import verifier_pb2 as pb
from transformers import PreTrainedTokenizerBase

from tests.verifier_service.tokenizers_for_tests import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
)
from verifier_service.chat import render_chat, tools_in_prompt
from verifier_service.request_error import RequestError
from verifier_service.text import Text
from verifier_service.tool_prompt import INSTRUCTION, takes_tools

USER = {"role": "user", "content": "Weather?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
# ChatML, as SmolLM2 has it: no tools, and content must be there.
PLAIN = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
AWARE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is not none }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}:{{ c.function.arguments.city }}]"
    "{% endfor %}{% endfor %}"
)


def with_template(template: Any) -> PreTrainedTokenizerBase:
    tokenizer = copy.copy(byte_level_tokenizer())
    tokenizer.chat_template = template
    return tokenizer


def call(arguments: Any, name: Any = "weather") -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: Any, content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": content}


def render(template: Any, messages: list[Any], tools: list[Any] | None = None, **more: Any) -> str:
    chat = pb.ChatMessages(
        messages_json=json.dumps(messages), tools_json=json.dumps(tools) if tools else "", **more
    )
    return render_chat(with_template(template), chat)


def refused(message: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        render(AWARE, [USER, message])
    assert caught.value.field == "messages"
    return caught.value.message


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        ("{% if tools is not none %}{{ tools }}{% endif %}", True),
        (AWARE, True),
        (PLAIN, False),
        ("{{ builtin_tools }} {{ toolset }} {{ tool }}", False),
    ],
)
def test_a_template_takes_tools_if_its_source_mentions_them(template: str, takes: bool) -> None:
    assert takes_tools(template) is takes


def test_a_template_that_takes_tools_gets_them_as_they_are() -> None:
    text = render(AWARE, [USER, asks(call('{"city": "Oslo"}')), result("rain")], [TOOL])
    assert text == f"{json.dumps(TOOL)}<user>Weather?<assistant>[weather:Oslo]<tool>rain"


def test_another_template_gets_an_instruction() -> None:
    other = {**TOOL, "function": {"name": "größe"}}
    text = render(PLAIN, [USER], [TOOL, other], add_generation_prompt=True)
    lines = f"{json.dumps(TOOL)}\n{json.dumps(other, ensure_ascii=False)}"
    assert text == f"<system>{INSTRUCTION.format(tools=lines)}\n<user>Weather?\n<assistant>"
    assert f"<tools>\n{lines}\n</tools>" in text
    assert '<tool_call>\n{"name": ' in text


def test_the_instruction_follows_what_the_system_says() -> None:
    for role in ("system", "developer"):
        text = render(PLAIN, [{"role": role, "content": "Be brief."}, USER], [TOOL])
        told = INSTRUCTION.format(tools=json.dumps(TOOL))
        assert text == f"<{role}>Be brief.\n\n{told}\n<user>Weather?\n"


def test_without_tools_nothing_is_added() -> None:
    assert render(PLAIN, [USER]) == "<user>Weather?\n"


def test_calls_and_results_become_text_where_the_template_knows_none() -> None:
    messages = [
        USER,
        asks(call('{"city": "Oslo"}'), call(""), content="I look."),
        result("rain"),
        result("sun"),
        {"role": "assistant", "content": "Rain."},
    ]
    assert render(PLAIN, messages) == (
        "<user>Weather?\n<assistant>I look.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n'
        "<user><tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>\n"
        "<assistant>Rain.\n"
    )
    assert render(PLAIN, [USER, asks(call("{}"))]).endswith(
        '<assistant><tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n'
    )


def test_a_requests_own_template_is_the_one_that_counts() -> None:
    text = render(PLAIN, [USER], [TOOL], chat_template="{{ tools | length }}")
    assert text == "1"
    text = render(AWARE, [USER], [TOOL], chat_template="{{ messages[0].role }}")
    assert text == "system"


def test_a_second_template_for_tools_is_used() -> None:
    both = {"default": PLAIN, "tool_use": AWARE}
    assert render(both, [USER], [TOOL]).startswith(json.dumps(TOOL))
    assert tools_in_prompt(with_template(both)) == "template"


@pytest.mark.parametrize("nothing", [None, []])
def test_no_calls_are_no_calls(nothing: Any) -> None:
    template = "{% for m in messages %}{{ 'tool_calls' in m }} {% endfor %}{{ tools }}"
    message = {"role": "assistant", "content": "x", "tool_calls": nothing, "function_call": None}
    assert render(template, [message]).startswith("False ")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (asks("x"), 'messages[1].tool_calls[0] "x" is not an object with a function'),
        (asks(call("{}"), {}), "messages[1].tool_calls[1] {} is not an object with a function"),
        (asks(call("{}", name=3)), "messages[1].tool_calls[0].function.name 3 is not a non-empty"),
        (asks(call("{oops")), 'tool_calls[0].function.arguments "{oops" is not JSON'),
        (asks(call("[" * 100_000)), "is not JSON"),
        (asks(call("[1]")), "tool_calls[0].function.arguments [1] is not a JSON object as text"),
        (asks(call(0)), "tool_calls[0].function.arguments 0 is not a JSON object as text"),
        (
            {"role": "assistant", "content": "x", "tool_calls": "f()"},
            'messages[1].tool_calls "f()" is not an array',
        ),
        (
            {"role": "assistant", "content": "x", "function_call": {"name": "f"}},
            "messages[1].function_call deprecated and not supported; send tool_calls",
        ),
        ({"role": "tool", "content": None}, "messages[1].content is missing"),
    ],
)
def test_wrong_calls_are_named(message: dict[str, Any], says: str) -> None:
    assert says in refused(message)


def test_the_verifier_says_how_tools_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Text(with_template(AWARE)).tools_in_prompt == "template"
    assert Text(byte_fallback_tokenizer()).tools_in_prompt == ""
    with_template(PLAIN).save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, logger="verifier_service"):
        assert Text.load(tmp_path).tools_in_prompt == "instruction"
    assert "the chat template takes no tools" in caplog.text
