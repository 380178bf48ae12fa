"""Reads the structure that a request asks for. Knows the protocol's fields and their limits."""

from __future__ import annotations

import json
from typing import Any

from speculation.v1 import verifier_pb2

from verifier_service.grammar.structure import Kind, Structure
from verifier_service.request_error import RequestError, shorten

MAX_CHARACTERS = 256 * 1024
MAX_CHOICES = 4096
_FIELD = "structured"


def requested_structure(request: verifier_pb2.GenerateRequest) -> Structure | None:
    """The structure, or None where the answer is free.

    Raises RequestError naming the field as the client knows it (`structured.parameter`).
    """
    if not request.HasField("structured"):
        return None
    asked = request.structured
    name = asked.WhichOneof("constraint")
    if name is None or (name == "json_object" and not asked.json_object):
        raise _refused(
            asked,
            "names no structure: json_schema, json_object, regex, choice, "
            "grammar or structural_tag is needed",
        )
    kind = Kind(name)
    is_json = kind in (Kind.JSON_SCHEMA, Kind.JSON_OBJECT)
    if asked.disable_any_whitespace and not is_json:
        raise _refused(asked, f"disable_any_whitespace is not allowed with {name}: JSON only")
    if asked.disable_additional_properties and kind is not Kind.JSON_SCHEMA:
        raise _refused(
            asked, f"disable_additional_properties is not allowed with {name}: json_schema only"
        )
    return Structure(
        kind,
        _text(asked, kind),
        compact=asked.disable_any_whitespace,
        closed=asked.disable_additional_properties,
    )


def hopeless(asked: verifier_pb2.StructuredOutput, reason: str) -> RequestError:
    """The refusal of a structure that cannot be compiled."""
    name = asked.WhichOneof("constraint")
    return _refused(asked, f"the {name} cannot be used: {reason}")


def _text(asked: verifier_pb2.StructuredOutput, kind: Kind) -> str:
    if kind is Kind.JSON_OBJECT:
        return ""
    if kind is Kind.CHOICE:
        strings = list(asked.choice.strings)
        if not 1 <= len(strings) <= MAX_CHOICES:
            raise _refused(
                asked, f"choice has {len(strings)} strings; 1 to {MAX_CHOICES} are allowed"
            )
        text = json.dumps(strings)
    else:
        text = getattr(asked, kind.value)
    if len(text) > MAX_CHARACTERS:
        raise _refused(
            asked,
            f"the {kind.value} has {len(text)} characters; at most {MAX_CHARACTERS} are allowed",
        )
    if not text:
        raise _refused(asked, f"the {kind.value} is empty")
    if kind is Kind.JSON_SCHEMA:
        _check_json(asked, kind, text, (dict, bool), "a JSON object, true or false")
    if kind is Kind.STRUCTURAL_TAG:
        _check_json(asked, kind, text, (dict,), "a JSON object")
    return str(text)


def _check_json(
    asked: verifier_pb2.StructuredOutput,
    kind: Kind,
    text: str,
    allowed: tuple[type, ...],
    words: str,
) -> None:
    try:
        value: Any = json.loads(text)
    except RecursionError:
        raise _refused(asked, f"the {kind.value} is nested too deeply") from None
    except ValueError as error:
        raise _refused(asked, f"the {kind.value} is not JSON: {error}") from error
    if not isinstance(value, allowed):
        raise _refused(asked, f"the {kind.value} is {shorten(text)}; it must be {words}")


def _refused(asked: verifier_pb2.StructuredOutput, what: str) -> RequestError:
    field = asked.parameter or _FIELD
    return RequestError(f"{field}: {what}", field=field)
