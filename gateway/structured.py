"""The fields that hold an answer to a structure: response_format and structured_outputs.

Knows their shapes and how the verifier is told; whether a schema, regular expression or grammar
can be used at all is the verifier's to say. Fields follow vLLM's server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, PlainValidator
from pydantic_core import PydanticCustomError
from speculation.v1 import verifier_pb2 as pb

from gateway.errors import bad_request
from gateway.fields import shown
from gateway.prompts import SHAPE_ERROR

_FORMATS: Final = ("text", "json_object", "json_schema", "structural_tag")
_KINDS: Final = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_FLAGS: Final = ("disable_any_whitespace", "disable_additional_properties")
# Known to vLLM's other backends.
_REFUSED: Final = {
    "whitespace_pattern": "whitespace is any or, with disable_any_whitespace, compact"
}


def check_response_format(value: Any) -> pb.StructuredOutput | None:
    """None where the answer is free text. Raises pydantic's error for the field."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _wrong("", value, f"an object whose type is one of {', '.join(_FORMATS)}")
    kind = value.get("type")
    if kind not in _FORMATS:
        raise _wrong(".type", kind, f"one of {', '.join(_FORMATS)}")
    if kind == "text":
        return None
    if kind == "json_object":
        return pb.StructuredOutput(json_object=True)
    if kind == "json_schema":
        return _named_schema(value.get("json_schema"))
    if "format" not in value and "structures" not in value:
        raise _wrong(".format", None, "an object: what the tag's text looks like")
    return pb.StructuredOutput(structural_tag=_json("", value))


def check_structured_outputs(value: Any) -> pb.StructuredOutput | None:
    """None where nothing is asked for. Raises pydantic's error for the field."""
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise _wrong("", value, f"an object with one of {', '.join(_KINDS)}")
    for name, why in _REFUSED.items():
        if value.get(name) is not None:
            raise _complete(f".{name}: {shown(value[name])} is not supported; leave it out: {why}")
    for name in value.keys() - {*_KINDS, *_FLAGS, *_REFUSED}:
        raise _complete(f".{name}: no such field; known are {', '.join((*_KINDS, *_FLAGS))}")
    asked = [name for name in _KINDS if value.get(name) is not None]
    if value.get("json_object") is False:
        asked.remove("json_object")
    if len(asked) != 1:
        named = " and ".join(asked) or "none"
        raise _complete(f": {named} given; exactly one of {', '.join(_KINDS)} is allowed")
    structured = _STRUCTURES[asked[0]](f".{asked[0]}", value[asked[0]])
    for name in _FLAGS:
        flag = value.get(name)
        if flag is not None and not isinstance(flag, bool):
            raise _wrong(f".{name}", flag, "true or false")
        setattr(structured, name, bool(flag))
    return structured


class StructuredFields(BaseModel):
    """At most one of the two may ask for a structure (`add_structured`)."""

    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, arbitrary_types_allowed=True
    )

    response_format: Annotated[
        pb.StructuredOutput | None, PlainValidator(check_response_format)
    ] = None
    structured_outputs: Annotated[
        pb.StructuredOutput | None, PlainValidator(check_structured_outputs)
    ] = None


def add_structured(request: pb.GenerateRequest, body: StructuredFields) -> None:
    """Hold the answer to what the client asked for. Raises ApiError 400 where both ask."""
    if body.response_format is not None and body.structured_outputs is not None:
        raise bad_request(
            "structured_outputs: not allowed together with response_format; only one of them can "
            "hold the answer",
            "structured_outputs",
        )
    for name in ("response_format", "structured_outputs"):
        structured: pb.StructuredOutput | None = getattr(body, name)
        if structured is not None:
            request.structured.CopyFrom(structured)
            request.structured.parameter = name


def _named_schema(value: Any) -> pb.StructuredOutput:
    place = ".json_schema"
    if not isinstance(value, dict):
        raise _wrong(place, value, "an object with name and schema")
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise _wrong(f"{place}.name", value.get("name"), "a string of at least one character")
    schema = value.get("schema")
    if not isinstance(schema, dict):
        raise _wrong(f"{place}.schema", schema, "a JSON schema, an object")
    strict = value.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong(f"{place}.strict", strict, "true or false")
    return pb.StructuredOutput(
        json_schema=_json(f"{place}.schema", schema), disable_additional_properties=bool(strict)
    )


def _schema(place: str, value: Any) -> pb.StructuredOutput:
    if not isinstance(value, str | dict):
        raise _wrong(place, value, "a JSON schema, as an object or a string")
    return pb.StructuredOutput(json_schema=value if isinstance(value, str) else _json(place, value))


def _object(place: str, value: Any) -> pb.StructuredOutput:
    if value is not True:
        raise _wrong(place, value, "true or false")
    return pb.StructuredOutput(json_object=True)


def _choice(place: str, value: Any) -> pb.StructuredOutput:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise _wrong(place, value, "a list of one or more strings")
    return pb.StructuredOutput(choice=pb.Choices(strings=value))


def _regex(place: str, value: Any) -> pb.StructuredOutput:
    return pb.StructuredOutput(regex=_string(place, value))


def _grammar(place: str, value: Any) -> pb.StructuredOutput:
    return pb.StructuredOutput(grammar=_string(place, value))


def _tag(place: str, value: Any) -> pb.StructuredOutput:
    if isinstance(value, dict):
        return pb.StructuredOutput(structural_tag=_json(place, value))
    return pb.StructuredOutput(structural_tag=_string(place, value))


def _string(place: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(place, value, "a string of at least one character")
    return value


_STRUCTURES: Final = {
    "json": _schema,
    "json_object": _object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _tag,
}


def _json(place: str, value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise _complete(f"{place}: the value is nested too deeply") from None


def _wrong(place: str, value: object, allowed: str) -> PydanticCustomError:
    return _complete(f"{place}: {shown(value)} is not allowed; must be {allowed}")


def _complete(message: str) -> PydanticCustomError:
    """An error whose message is complete but for the field's name before it."""
    return PydanticCustomError(SHAPE_ERROR, "{complete}", {"complete": message})
