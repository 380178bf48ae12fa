"""What `tools` and `tool_choice` may be, and what is said of what they may not."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ApiError
from gateway.requests import parse_chat
from gateway.tools.definitions import ChoiceMode, NamedChoice

BASE = {"messages": [{"role": "user", "content": "x"}]}


def function(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def refused(**fields: Any) -> tuple[str | None, str]:
    with pytest.raises(ApiError) as caught:
        parse_chat({**BASE, **fields})
    assert caught.value.status == 400
    return caught.value.param, caught.value.message


def test_tools_are_read() -> None:
    schema = {"type": "object", "properties": {"a": True}, "required": ["a"]}
    tools = [
        function("get_weather-2.0", description="d", parameters=schema, strict=True),
        function(parameters=None, strict=None, description=None),
    ]
    body = parse_chat({**BASE, "tools": tools})
    first, second = body.tools
    assert (first.name, first.parameters, first.strict) == ("get_weather-2.0", schema, True)
    assert (second.name, second.parameters, second.strict) == ("f", None, False)
    assert [tool.definition for tool in body.tools] == tools


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, ChoiceMode.NONE),
        ({"tools": None, "tool_choice": None}, ChoiceMode.NONE),
        ({"tools": [], "tool_choice": "none"}, ChoiceMode.NONE),
        ({"tools": [function()]}, ChoiceMode.AUTO),
        ({"tools": [function()], "tool_choice": "none"}, ChoiceMode.NONE),
        ({"tools": [function()], "tool_choice": "auto"}, ChoiceMode.AUTO),
        ({"tools": [function()], "tool_choice": "required"}, ChoiceMode.REQUIRED),
        ({"tools": [function()], "tool_choice": named("f")}, NamedChoice("f")),
    ],
)
def test_the_choice_that_holds(fields: dict[str, Any], choice: object) -> None:
    assert parse_chat({**BASE, **fields}).resolved_tool_choice == choice


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("f", "tools: 'f' is not allowed; must be a list of tools"),
        ([3], "tools[0]: 3 is not allowed; must be an object with type and function"),
        (
            [function(), {"type": "custom"}],
            "tools[1].type: 'custom' is not allowed; must be 'function', the only kind supported",
        ),
        (
            [{"function": {"name": "f"}}],
            "tools[0].type: null is not allowed; must be 'function', the only kind supported",
        ),
        (
            [{"type": "function", "name": "f"}],
            "tools[0].function: null is not allowed; must be an object with name, description "
            "and parameters",
        ),
        *(
            (
                [function(name)],
                f"tools[0].function.name: {shown} is not allowed; must be 1 to 64 of the "
                "characters A-Z a-z 0-9 _ . -",
            )
            for name, shown in (
                (None, "null"),
                ("", "''"),
                ("a b", "'a b'"),
                ("é", "'é'"),
                ("f\n", "'f\\n'"),
                ("x" * 65, "'" + "x" * 59 + "..."),
            )
        ),
        (
            [function(), function("g"), function()],
            "tools[2].function.name: 'f' is not allowed; must be unlike the names of the other "
            "tools",
        ),
        (
            [function(description=1)],
            "tools[0].function.description: 1 is not allowed; must be a string",
        ),
        (
            [function(strict="yes")],
            "tools[0].function.strict: 'yes' is not allowed; must be true or false",
        ),
        (
            [function(parameters=[])],
            "tools[0].function.parameters: [] is not allowed; must be a JSON schema object",
        ),
        (
            [function(parameters={"type": "array"})],
            "tools[0].function.parameters.type: 'array' is not allowed; must be 'object': "
            "arguments are an object",
        ),
        (
            [function(parameters={"properties": ["a"]})],
            "tools[0].function.parameters.properties: ['a'] is not allowed; must be an object of "
            "schemas",
        ),
        (
            [function(parameters={"properties": {"a": "string"}})],
            "tools[0].function.parameters.properties.a: 'string' is not allowed; must be a JSON "
            "schema",
        ),
        (
            [function(parameters={"required": "a"})],
            "tools[0].function.parameters.required: 'a' is not allowed; must be a list of "
            "property names",
        ),
        ([function(f"f{i}") for i in range(129)], "tools: 129 tools; at most 128 are allowed"),
    ],
)
def test_wrong_tools_are_named(tools: Any, says: str) -> None:
    assert refused(tools=tools) == ("tools", says)


def test_as_many_tools_as_are_allowed() -> None:
    assert len(parse_chat({**BASE, "tools": [function(f"f{i}") for i in range(128)]}).tools) == 128


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        "",
        3,
        True,
        [],
        {},
        {"type": "function"},
        {"type": "function", "name": "f"},
        {"type": "function", "function": {"name": None}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    ],
)
def test_wrong_choices_are_named(choice: Any) -> None:
    param, says = refused(tools=[function()], tool_choice=choice)
    assert param == "tool_choice"
    assert says.startswith("tool_choice: ")
    assert says.endswith(
        "is not allowed; must be 'none', 'auto', 'required' or "
        "{'type': 'function', 'function': {'name': '...'}}"
    )


@pytest.mark.parametrize(
    ("choice", "asked"), [("auto", "auto"), ("required", "required"), (named("f"), "a function")]
)
@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": None}])
def test_a_choice_needs_tools(tools: dict[str, Any], choice: Any, asked: str) -> None:
    assert refused(**tools, tool_choice=choice) == (
        "tool_choice",
        f"tool_choice: {asked} is not allowed without tools; send tools, or leave it out",
    )


def test_the_named_function_must_be_offered() -> None:
    assert refused(tools=[function(), function("g")], tool_choice=named("h")) == (
        "tool_choice.function.name",
        "tool_choice.function.name: 'h' is not allowed; must be one of the tools: f, g",
    )
    many = [function(f"{i:060}") for i in range(100)]
    _, says = refused(tools=many, tool_choice=named("h"))
    assert len(says) < 500


@pytest.mark.parametrize(
    ("field", "value", "successor"),
    [
        ("functions", [{"name": "f"}], "tools"),
        ("function_call", {"name": "f"}, "tool_choice"),
        ("function_call", "required", "tool_choice"),
    ],
)
def test_deprecated_fields_name_their_successor(field: str, value: Any, successor: str) -> None:
    assert refused(**{field: value}) == (
        field,
        f"{field}: deprecated and not supported; leave {field} out and send {successor}",
    )


@pytest.mark.parametrize(("field", "value"), [("functions", []), ("function_call", "none")])
def test_deprecated_fields_that_ask_for_nothing_pass(field: str, value: Any) -> None:
    assert parse_chat({**BASE, field: value}).tools == []


def test_parallel_tool_calls_is_a_flag() -> None:
    assert refused(parallel_tool_calls="no")[0] == "parallel_tool_calls"
    assert parse_chat({**BASE, "parallel_tool_calls": False}).parallel_tool_calls is False
