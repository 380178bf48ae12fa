"""The tools a request offers and which of them it asks for: checked, and in our own words.

Knows the shapes and limits of `tools` and `tool_choice`; does not know the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.errors import bad_request
from gateway.fields import shown
from gateway.prompts import SHAPE_ERROR

MAX_TOOLS: Final = 128
NAME_PATTERN: Final = r"[A-Za-z0-9_.-]{1,64}"

_NAME: Final = re.compile(NAME_PATTERN)
_NAME_WORDS: Final = "1 to 64 of the characters A-Z a-z 0-9 _ . -"
_CHOICE_WORDS: Final = (
    "'none', 'auto', 'required' or {'type': 'function', 'function': {'name': '...'}}"
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One function. `parameters` is a JSON schema; None: it takes none."""

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    # As the client wrote it, for the chat template.
    definition: Mapping[str, Any] = field(default_factory=dict)


class ChoiceMode(Enum):
    """Whether the answer may (auto), must (required) or must not (none) call."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class NamedChoice:
    """The answer must call this function."""

    name: str


ToolChoice = ChoiceMode | NamedChoice


def check_tools(value: Any) -> list[Tool]:
    """null or a list of function tools. Raises pydantic's error for the field `tools`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(value, "a list of tools")
    if len(value) > MAX_TOOLS:
        raise _wrong_count(len(value))
    tools = [_tool(item, f"[{index}]") for index, item in enumerate(value)]
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise _wrong(
                tool.name, "unlike the names of the other tools", f"[{index}].function.name"
            )
        seen.add(tool.name)
    return tools


def check_tool_choice(value: Any) -> ToolChoice | None:
    """Raises pydantic's error for the field `tool_choice`."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return ChoiceMode(value)
        except ValueError:
            raise _wrong(value, _CHOICE_WORDS) from None
    if not isinstance(value, dict) or value.get("type") != "function":
        raise _wrong(value, _CHOICE_WORDS)
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _wrong(value, _CHOICE_WORDS)
    return NamedChoice(name)


def resolve_choice(tools: Sequence[Tool], choice: ToolChoice | None) -> ToolChoice:
    """The choice that holds: without one, auto where there are tools and none where there are none.

    Raises ApiError 400 for a choice that needs tools, or a tool, that the request does not offer.
    """
    if not tools:
        if choice in (None, ChoiceMode.NONE):
            return ChoiceMode.NONE
        asked = choice.value if isinstance(choice, ChoiceMode) else "a function"
        raise bad_request(
            f"tool_choice: {asked} is not allowed without tools; send tools, or leave it out",
            "tool_choice",
        )
    if isinstance(choice, NamedChoice) and all(tool.name != choice.name for tool in tools):
        offered = ", ".join(tool.name for tool in tools)
        raise bad_request(
            f"tool_choice.function.name: {shown(choice.name)} is not allowed; must be one of the "
            f"tools: {offered if len(offered) <= 300 else offered[:300] + '...'}",
            "tool_choice.function.name",
        )
    return ChoiceMode.AUTO if choice is None else choice


def _tool(value: Any, place: str) -> Tool:
    if not isinstance(value, dict):
        raise _wrong(value, "an object with type and function", place)
    if value.get("type") != "function":
        raise _wrong(value.get("type"), "'function', the only kind supported", f"{place}.type")
    function = value.get("function")
    at = f"{place}.function"
    if not isinstance(function, dict):
        raise _wrong(function, "an object with name, description and parameters", at)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(name, _NAME_WORDS, f"{at}.name")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise _wrong(description, "a string", f"{at}.description")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong(strict, "true or false", f"{at}.strict")
    parameters = function.get("parameters")
    if parameters is not None:
        _check_schema(parameters, f"{at}.parameters")
    return Tool(name=name, parameters=parameters, strict=bool(strict), definition=value)


def _check_schema(value: Any, place: str) -> None:
    """What every schema of an object has right; the grammar's compiler knows the rest."""
    if not isinstance(value, dict):
        raise _wrong(value, "a JSON schema object", place)
    if value.get("type", "object") != "object":
        raise _wrong(value["type"], "'object': arguments are an object", f"{place}.type")
    properties = value.get("properties", {})
    if not isinstance(properties, dict):
        raise _wrong(properties, "an object of schemas", f"{place}.properties")
    for name, schema in properties.items():
        if not isinstance(schema, dict | bool):
            raise _wrong(schema, "a JSON schema", f"{place}.properties.{name}")
    required = value.get("required", [])
    if not isinstance(required, list) or not all(isinstance(item, str) for item in required):
        raise _wrong(required, "a list of property names", f"{place}.required")


def _wrong(value: object, allowed: str, place: str = "") -> PydanticCustomError:
    """An error whose message is complete but for the field's name before it."""
    return PydanticCustomError(
        SHAPE_ERROR,
        "{complete}",
        {"complete": f"{place}: {shown(value)} is not allowed; must be {allowed}"},
    )


def _wrong_count(count: int) -> PydanticCustomError:
    return PydanticCustomError(
        SHAPE_ERROR, "{complete}", {"complete": f": {count} tools; at most {MAX_TOOLS} are allowed"}
    )
