"""The structure that a request names: read, or refused under the client's own name for it."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb

from verifier_service.grammar.requested import (
    MAX_CHARACTERS,
    MAX_CHOICES,
    hopeless,
    requested_structure,
)
from verifier_service.grammar.structure import Kind, Structure
from verifier_service.request_error import RequestError


def read(**fields: Any) -> Structure | None:
    return requested_structure(pb.GenerateRequest(structured=pb.StructuredOutput(**fields)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"json_schema": "{}"}, Structure(Kind.JSON_SCHEMA, "{}")),
        ({"json_schema": "true"}, Structure(Kind.JSON_SCHEMA, "true")),
        (
            {
                "json_schema": "{}",
                "disable_any_whitespace": True,
                "disable_additional_properties": True,
            },
            Structure(Kind.JSON_SCHEMA, "{}", compact=True, closed=True),
        ),
        ({"json_object": True}, Structure(Kind.JSON_OBJECT)),
        ({"regex": "a+"}, Structure(Kind.REGEX, "a+")),
        ({"choice": pb.Choices(strings=["é", ""])}, Structure(Kind.CHOICE, json.dumps(["é", ""]))),
        ({"grammar": "root ::= x"}, Structure(Kind.GRAMMAR, "root ::= x")),
        ({"structural_tag": "{}"}, Structure(Kind.STRUCTURAL_TAG, "{}")),
    ],
)
def test_each_kind_is_read(fields: dict[str, Any], expected: Structure) -> None:
    assert read(**fields) == expected


def test_a_request_without_a_structure_is_free() -> None:
    assert requested_structure(pb.GenerateRequest()) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "names no structure"),
        ({"json_object": False}, "names no structure"),
        ({"regex": ""}, "the regex is empty"),
        ({"regex": "a" * (MAX_CHARACTERS + 1)}, f"at most {MAX_CHARACTERS} are allowed"),
        ({"json_schema": '{"a":' + '"x"' * 400_000 + "}"}, "the json_schema has"),
        ({"json_schema": "{"}, "the json_schema is not JSON"),
        ({"json_schema": "[1]"}, "must be a JSON object, true or false"),
        ({"json_schema": '{"a":' * 60_000}, "the json_schema"),
        ({"json_schema": "[" * 100_000 + "]" * 100_000}, "nested too deeply"),
        ({"structural_tag": "true"}, "must be a JSON object"),
        ({"choice": pb.Choices()}, "choice has 0 strings"),
        ({"choice": pb.Choices(strings=["a"] * (MAX_CHOICES + 1))}, "1 to 4096 are allowed"),
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace is not allowed"),
        (
            {"json_object": True, "disable_additional_properties": True},
            "disable_additional_properties is not allowed with json_object",
        ),
    ],
)
@pytest.mark.parametrize("parameter", ["", "response_format"])
def test_what_cannot_be_a_structure_is_refused(
    fields: dict[str, Any], says: str, parameter: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(parameter=parameter, **fields)
    name = parameter or "structured"
    assert caught.value.field == name
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.message.startswith(f"{name}: ") and says in caught.value.message


def test_a_hopeless_structure_is_the_clients_fault() -> None:
    error = hopeless(pb.StructuredOutput(regex="(", parameter="structured_outputs"), "it is open")
    assert error.message == "structured_outputs: the regex cannot be used: it is open"
    assert error.field == "structured_outputs"
    assert error.status is grpc.StatusCode.INVALID_ARGUMENT
