"""What holds an answer to a tool call: the JSON schema of a named or of any offered function.

Knows how functions' schemas become one; compiling it is the verifier's work. The shapes are
vLLM's: arguments alone for a named function, `[{"name", "parameters"}, …]` for a required one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from speculation.v1 import verifier_pb2 as pb

from gateway.errors import bad_request
from gateway.tools.definitions import ChoiceMode, NamedChoice, Tool, ToolChoice

_NO_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
# Keywords whose value is data, not schemas.
_DATA: Final = frozenset({"const", "default", "enum", "example", "examples"})
# Keywords that map names to schemas: their keys are no keywords.
_NAMED_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_COMBINING: Final = frozenset({"$ref", "anyOf", "oneOf", "allOf"})


def held_to(
    tools: Sequence[Tool], choice: ToolChoice, *, parallel: bool
) -> pb.StructuredOutput | None:
    """What the answer is held to; None where it may be any text."""
    if isinstance(choice, NamedChoice):
        tool = next(tool for tool in tools if tool.name == choice.name)
        return pb.StructuredOutput(json_schema=_text(arguments_schema(tool)))
    if choice is ChoiceMode.REQUIRED:
        return pb.StructuredOutput(json_schema=_text(calls_schema(tools, parallel=parallel)))
    return None


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of `tool`'s arguments; always one of objects."""
    if tool.parameters is None:
        return dict(_NO_PARAMETERS)
    if "type" in tool.parameters or _COMBINING & tool.parameters.keys():
        return dict(tool.parameters)
    return {"type": "object", **tool.parameters}


def calls_schema(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
    """The schema of an array of one or more calls; of exactly one unless `parallel`."""
    definitions: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        key = f"tool_{index}"
        definitions[key] = _moved(arguments_schema(tool), f"#/$defs/{key}")
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    "parameters": {"$ref": f"#/$defs/{key}"},
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": calls},
        "$defs": definitions,
    }
    if not parallel:
        schema["maxItems"] = 1
    return schema


def _moved(schema: Any, place: str) -> Any:
    """`schema` with its references right once it stands at `place` of a larger one."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = place + value[1:]
        elif key in _DATA:
            moved[key] = value
        elif key in _NAMED_SCHEMAS and isinstance(value, dict):
            moved[key] = {name: _moved(item, place) for name, item in value.items()}
        else:
            moved[key] = _moved(value, place)
    return moved


def _text(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        raise bad_request("tools: a schema is nested too deeply", "tools") from None
