"""response_format and structured_outputs: what the verifier is told, and what is refused how."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import openai
import pydantic
import pytest
from speculation.v1 import verifier_pb2 as pb

from gateway.calls import chat_request, completion_request
from gateway.errors import ApiError
from gateway.requests import parse_chat, parse_completion
from gateway.settings import GatewaySettings
from tests.gateway.fake_verifier import Answer, FakeVerifier

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
MESSAGES = [{"role": "user", "content": "hi"}]
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
LEGACY_TAG = {"type": "structural_tag", "structures": [], "triggers": []}


def both(**fields: Any) -> list[pb.GenerateRequest]:
    """The same fields through both endpoints."""
    settings = GatewaySettings(verifiers=("unix:unused",))
    completion = parse_completion({"prompt": "hi", **fields})
    chat = parse_chat({"messages": MESSAGES, **fields})
    return [
        completion_request(completion, "hi", "m", settings),
        chat_request(chat, "m", settings),
    ]


def refusals(**fields: Any) -> list[ApiError]:
    errors = []
    for make in (
        lambda: both(**fields),
        lambda: chat_request(
            parse_chat({"messages": MESSAGES, **fields}),
            "m",
            GatewaySettings(verifiers=("unix:unused",)),
        ),
    ):
        with pytest.raises(ApiError) as caught:
            make()
        errors.append(caught.value)
    return errors


def structured(**fields: Any) -> pb.StructuredOutput:
    completion, chat = both(**fields)
    assert completion.structured == chat.structured
    assert completion.HasField("structured")
    return completion.structured


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": None},
        {"structured_outputs": {}},
        {"guided_json": None, "guided_regex": ""},
    ],
)
def test_free_text_asks_for_nothing(fields: dict[str, Any]) -> None:
    assert not any(request.HasField("structured") for request in both(**fields))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"type": "json_object"}, {"json_object": True}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            {"json_schema": json.dumps(SCHEMA)},
        ),
        (
            {
                "type": "json_schema",
                "json_schema": {
                    "name": "x",
                    "description": "d",
                    "schema": SCHEMA,
                    "strict": True,
                },
            },
            {"json_schema": json.dumps(SCHEMA), "disable_additional_properties": True},
        ),
        (TAG, {"structural_tag": json.dumps(TAG)}),
        (LEGACY_TAG, {"structural_tag": json.dumps(LEGACY_TAG)}),
    ],
)
def test_response_format(value: dict[str, Any], expected: dict[str, Any]) -> None:
    assert structured(response_format=value) == pb.StructuredOutput(
        parameter="response_format", **expected
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"json": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}),
        ({"json": json.dumps(SCHEMA)}, {"json_schema": json.dumps(SCHEMA)}),
        ({"json_object": True}, {"json_object": True}),
        ({"regex": "a+", "json": None, "json_object": False}, {"regex": "a+"}),
        ({"choice": ["yes", "no"]}, {"choice": pb.Choices(strings=["yes", "no"])}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"structural_tag": TAG}, {"structural_tag": json.dumps(TAG)}),
        ({"structural_tag": json.dumps(TAG)}, {"structural_tag": json.dumps(TAG)}),
        (
            {
                "json": SCHEMA,
                "disable_any_whitespace": True,
                "disable_additional_properties": True,
                "whitespace_pattern": None,
            },
            {
                "json_schema": json.dumps(SCHEMA),
                "disable_any_whitespace": True,
                "disable_additional_properties": True,
            },
        ),
    ],
)
def test_structured_outputs(value: dict[str, Any], expected: dict[str, Any]) -> None:
    assert structured(structured_outputs=value) == pb.StructuredOutput(
        parameter="structured_outputs", **expected
    )


DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("response_format", "json", "must be an object whose type is one of text, json_object"),
        ("response_format", {}, ".type: null is not allowed"),
        ("response_format", {"type": "xml"}, ".type: 'xml' is not allowed"),
        ("response_format", {"type": ["text"]}, ".type: ['text'] is not allowed"),
        ("response_format", {"type": "json_schema"}, ".json_schema: null is not allowed"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            ".json_schema.name: null is not allowed",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x"}},
            ".json_schema.schema: null is not allowed",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": 1}},
            ".json_schema.strict: 1 is not allowed",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}},
            "nested too deeply",
        ),
        ("response_format", {"type": "structural_tag"}, ".format: null is not allowed"),
        ("structured_outputs", ["a"], "must be an object with one of json"),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}, ": regex and choice given"),
        ("structured_outputs", {"disable_any_whitespace": True}, ": none given"),
        ("structured_outputs", {"json_object": False}, ": none given"),
        ("structured_outputs", {"json": [1]}, ".json: [1] is not allowed"),
        ("structured_outputs", {"json_object": 1}, ".json_object: 1 is not allowed"),
        ("structured_outputs", {"regex": ""}, ".regex: '' is not allowed"),
        ("structured_outputs", {"regex": 3}, ".regex: 3 is not allowed"),
        ("structured_outputs", {"choice": []}, ".choice: [] is not allowed"),
        ("structured_outputs", {"choice": ["a", 1]}, ".choice: ['a', 1] is not allowed"),
        ("structured_outputs", {"grammar": {}}, ".grammar: {} is not allowed"),
        ("structured_outputs", {"structural_tag": 1}, ".structural_tag: 1 is not allowed"),
        (
            "structured_outputs",
            {"json": SCHEMA, "whitespace_pattern": " ?"},
            ".whitespace_pattern: ' ?' is not supported",
        ),
        (
            "structured_outputs",
            {"json": SCHEMA, "disable_any_whitespace": 1},
            ".disable_any_whitespace: 1 is not allowed; must be true or false",
        ),
        ("structured_outputs", {"jsn": SCHEMA}, ".jsn: no such field"),
    ],
)
def test_malformed_structures_are_refused_by_name(field: str, value: Any, says: str) -> None:
    for error in refusals(**{field: value}):
        assert error.status == 400 and error.param == field
        assert error.message.startswith(field) and says in error.message


def test_two_structures_are_one_too_many() -> None:
    for error in refusals(
        response_format={"type": "json_object"}, structured_outputs={"regex": "a"}
    ):
        assert error.param == "structured_outputs" and "response_format" in error.message


@pytest.mark.parametrize(
    ("field", "value", "successor"),
    [
        ("guided_json", SCHEMA, "structured_outputs with json"),
        ("guided_regex", "a", "structured_outputs with regex"),
        ("guided_choice", ["a"], "structured_outputs with choice"),
        ("guided_grammar", "root ::= x", "structured_outputs with grammar"),
        ("guided_json_object", True, "structured_outputs with json_object"),
        ("guided_decoding_backend", "outlines", "structured_outputs"),
        ("guided_whitespace_pattern", " ", "structured_outputs with disable_any_whitespace"),
    ],
)
def test_vllms_old_names_are_refused_with_their_successors(
    field: str, value: Any, successor: str
) -> None:
    for error in refusals(**{field: value}):
        assert error.param == field and f"send {successor}" in error.message


async def test_a_verifiers_refusal_names_the_clients_field(
    http: httpx.AsyncClient, verifier: FakeVerifier
) -> None:
    import grpc

    verifier.script = lambda request: Answer(
        status=grpc.StatusCode.INVALID_ARGUMENT,
        message=f"{request.structured.parameter}: the regex cannot be used: it is hopeless",
        metadata=(("outrider-field", request.structured.parameter),),
    )
    reply = await http.post(
        "/v1/completions", json={"prompt": "hi", "structured_outputs": {"regex": "("}}
    )
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "structured_outputs" and error["type"] == "BadRequestError"
    assert "the regex cannot be used" in error["message"]


class Person(pydantic.BaseModel):
    name: str
    age: int


async def test_the_official_clients_parse_helper(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    text = '{"name": "Ada", "age": 36}'
    verifier.script = lambda request: Answer(pieces=[(text, 0)])
    reply = await client.chat.completions.parse(
        model="fake-model", messages=MESSAGES, response_format=Person
    )
    assert reply.choices[0].message.parsed == Person(name="Ada", age=36)
    asked = verifier.requests[-1].structured
    assert asked.disable_additional_properties and asked.parameter == "response_format"
    assert json.loads(asked.json_schema)["required"] == ["name", "age"]


def test_the_gateway_loads_no_grammar_library() -> None:
    code = "import gateway.app, sys; sys.exit(bool({'torch', 'xgrammar'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
