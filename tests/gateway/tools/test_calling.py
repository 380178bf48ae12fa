"""What tools change in the verifier's request, and that xgrammar makes of it what is meant."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar as xg
from speculation.v1 import verifier_pb2 as pb

from gateway.errors import ApiError
from gateway.requests import parse_chat
from gateway.tools.calling import add_tools
from gateway.tools.parsers import Notation

STRICT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"City": {"type": "string"}},
        },
    },
}
LOOSE: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}},
}
SCHEMA = {"type": "object", "properties": {"r": {"type": "integer"}}, "required": ["r"]}


def called(
    *tools: dict[str, Any],
    structured: pb.StructuredOutput | None = None,
    notation: Notation = Notation.HERMES,
    **fields: Any,
) -> pb.GenerateRequest:
    body = parse_chat(
        {"messages": [{"role": "user", "content": "x"}], "tools": list(tools), **fields}
    )
    request = pb.GenerateRequest(structured=structured)
    add_tools(request, body, notation)
    return request


def refused(*tools: dict[str, Any], **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(ApiError) as caught:
        called(*tools, **fields)
    assert caught.value.status == 400
    return caught.value.param, caught.value.message


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def accepts(request: pb.GenerateRequest, text: str) -> bool:
    """Whether `text` may be the whole answer."""
    vocabulary = xg.TokenizerInfo([chr(i) for i in range(128)], stop_token_ids=[0])
    compiler = xg.GrammarCompiler(vocabulary)
    matcher = xg.GrammarMatcher(compiler.compile_structural_tag(request.structured.structural_tag))
    return matcher.accept_string(text) and matcher.accept_token(0)


def json_format(**more: Any) -> pb.StructuredOutput:
    return pb.StructuredOutput(json_schema=json.dumps(SCHEMA), parameter="response_format", **more)


def test_auto_without_strict_tools_holds_nothing() -> None:
    request = called(LOOSE)
    assert not request.HasField("structured")
    assert json.loads(request.chat.tools_json) == [LOOSE]


def test_without_tools_nothing_changes() -> None:
    assert called() == pb.GenerateRequest()


def test_what_is_forced_is_named_in_errors() -> None:
    assert called(LOOSE, tool_choice="required").structured.parameter == "tools"
    assert called(STRICT).structured.parameter == "tools"


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("Hello <tool> you", True),
        (call("weather", '{"city": "Oslo"}'), True),
        ("Hm. " + call("weather", '{"city": "Oslo"}') + "\n" + call("f", "{}"), True),
        (call("weather", '{"city": 3}'), False),
        (call("weather", "{}"), False),
        (call("other", "{}"), False),
        ("<tool_call>oops</tool_call>", False),
        # Not strict: JSON, but any.
        (call("f", '{"a": "x", "b": [1]}'), True),
        (call("f", "3"), False),
    ],
)
def test_strict_calls_are_held_and_text_is_not(text: str, matches: bool) -> None:
    request = called(STRICT, LOOSE)
    assert accepts(request, text) is matches
    assert not request.sampling.skip_special_tokens


def test_a_strict_answer_ends_behind_its_only_call() -> None:
    request = called(STRICT, LOOSE, parallel_tool_calls=False)
    assert accepts(request, "Hm. " + call("f", "{}"))
    assert not accepts(request, call("f", "{}") + "\n" + call("f", "{}"))


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ('{"r": 1}', True),
        (call("weather", '{"city": "Oslo"}'), True),
        (call("f", "{}") + "\n" + call("f", "{}"), True),
        ('{"r": "x"}', False),
        ("Hello", False),
        (call("weather", '{"city": 1}'), False),
    ],
)
def test_a_format_and_tools_leave_both_open(text: str, matches: bool) -> None:
    request = called(STRICT, LOOSE, structured=json_format())
    assert request.structured.parameter == "response_format"
    assert accepts(request, text) is matches


def test_any_json_object_or_a_call() -> None:
    structured = pb.StructuredOutput(json_object=True, parameter="response_format")
    request = called(LOOSE, structured=structured)
    assert accepts(request, '{"anything": [1, {"x": null}]}')
    assert accepts(request, call("f", '{"a": 1}'))
    assert not accepts(request, "[1]")


def test_choice_none_keeps_the_format() -> None:
    assert called(LOOSE, structured=json_format(), tool_choice="none").structured == json_format()


@pytest.mark.parametrize(
    "fields",
    [
        {"structured": json_format(), "tool_choice": "required"},
        {
            "structured": json_format(),
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        {"structured": json_format(disable_any_whitespace=True)},
        {"structured": json_format(), "notation": Notation.LLAMA3_JSON},
        {"structured": json_format(), "notation": Notation.MISTRAL},
        {"structured": pb.StructuredOutput(regex="a+", parameter="response_format")},
    ],
)
def test_what_leaves_no_room_for_calls(fields: dict[str, Any]) -> None:
    assert refused(LOOSE, **fields) == (
        "response_format",
        "response_format: leaves no room for tool calls; leave response_format out, or send "
        "tool_choice 'none'",
    )


def test_a_schema_that_is_no_json() -> None:
    structured = pb.StructuredOutput(json_schema="{", parameter="structured_outputs")
    param, says = refused(LOOSE, structured=structured)
    assert param == "structured_outputs"
    assert "the schema is not JSON" in says


@pytest.mark.parametrize("notation", [Notation.LLAMA3_JSON, Notation.MISTRAL])
def test_strict_needs_a_notation_that_can_be_held(notation: Notation) -> None:
    assert refused(LOOSE, STRICT, notation=notation) == (
        "tools",
        "tools[1].function.strict: true is not supported where the model writes calls as "
        f"{notation.value} does; leave it out, or send tool_choice 'required'",
    )
    request = called(LOOSE, STRICT, notation=notation, tool_choice="required")
    assert request.structured.json_schema


def test_a_schema_nested_too_deeply() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"not": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    for choice in ("auto", "required", "none"):
        assert refused(tool, tool_choice=choice) == (
            "tools",
            "tools: a schema is nested too deeply",
        )
