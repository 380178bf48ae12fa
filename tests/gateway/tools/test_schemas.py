"""What a forced call is held to: the schemas, checked by compiling them with xgrammar."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar as xg

from gateway.tools.definitions import ChoiceMode, NamedChoice, Tool
from gateway.tools.schemas import arguments_schema, calls_schema, held_to

CITY = Tool(
    "weather",
    {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "required": ["place"],
        "additionalProperties": False,
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            }
        },
    },
)
# The same name for another definition, and a function without parameters.
SIZE = Tool(
    "size",
    {
        "properties": {"$ref": {"$ref": "#/definitions/Place"}, "default": {"enum": ["#/x", 1]}},
        "required": ["$ref"],
        "additionalProperties": False,
        "definitions": {"Place": {"type": "integer"}},
    },
)
TIME = Tool("time")
TOOLS = [CITY, SIZE, TIME]


def accepts(schema: Any, text: str) -> bool:
    """Whether `text` is complete and matches `schema`."""
    vocabulary = xg.TokenizerInfo([chr(i) for i in range(128)], stop_token_ids=[0])
    grammar = xg.GrammarCompiler(vocabulary).compile_json_schema(json.dumps(schema))
    matcher = xg.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(0)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ('[{"name": "weather", "parameters": {"place": {"city": "Oslo"}}}]', True),
        ('[{"name": "size", "parameters": {"$ref": 7}}]', True),
        ('[{"name": "size", "parameters": {"$ref": 7, "default": "#/x"}}]', True),
        (
            '[{"name": "time", "parameters": {}}, {"name": "size", "parameters": {"$ref": 1}}]',
            True,
        ),
        ('[{"name": "weather", "parameters": {"place": 7}}]', False),
        ('[{"name": "size", "parameters": {"$ref": {"city": "Oslo"}}}]', False),
        ('[{"name": "size", "parameters": {"$ref": 7, "default": "#/$defs/tool_1/x"}}]', False),
        ('[{"name": "time", "parameters": {"a": 1}}]', False),
        ('[{"name": "other", "parameters": {}}]', False),
        ('[{"name": "time"}]', False),
        ("[]", False),
        ('{"name": "time", "parameters": {}}', False),
    ],
)
def test_a_required_call_is_one_or_more_of_the_offered(text: str, matches: bool) -> None:
    assert accepts(calls_schema(TOOLS, parallel=True), text) is matches


def test_without_parallel_calls_it_is_exactly_one() -> None:
    schema = calls_schema([TIME], parallel=False)
    assert accepts(schema, '[{"name": "time", "parameters": {}}]')
    two = '[{"name": "time", "parameters": {}}, {"name": "time", "parameters": {}}]'
    assert not accepts(schema, two)
    assert accepts(calls_schema([TIME], parallel=True), two)


def test_a_named_calls_answer_is_its_arguments() -> None:
    held = held_to(TOOLS, NamedChoice("weather"), parallel=True)
    assert held is not None
    assert json.loads(held.json_schema) == CITY.parameters
    schema = json.loads(held.json_schema)
    assert accepts(schema, '{"place": {"city": "Oslo"}}')
    assert not accepts(schema, '{"place": 3}')


def test_schemas_are_of_objects_even_where_they_do_not_say_so() -> None:
    assert accepts(arguments_schema(TIME), "{}")
    assert not accepts(arguments_schema(TIME), '{"a": 1}')
    assert arguments_schema(Tool("f", {})) == {"type": "object"}
    assert not accepts(arguments_schema(Tool("f", {})), "3")
    combined = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}
    assert arguments_schema(Tool("f", combined)) == combined


def test_other_choices_hold_nothing() -> None:
    assert held_to(TOOLS, ChoiceMode.AUTO, parallel=True) is None
    assert held_to(TOOLS, ChoiceMode.NONE, parallel=True) is None


def test_the_client_schema_is_left_as_it_was() -> None:
    before = json.dumps(CITY.parameters)
    calls_schema(TOOLS, parallel=True)
    assert json.dumps(CITY.parameters) == before
