"""Request bodies: what is refused, in which words; what passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.bodies import DetokenizeBody
from gateway.body import parse_json_object
from gateway.errors import ApiError
from gateway.requests import parse, parse_chat, parse_completion, parse_tokenize
from tests.gateway.fake_verifier import MODEL

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "x"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}


def refusal_of(parser: Any, body: Mapping[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parser(body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("temperature", 3, "0 to 2"),
        ("temperature", -0.1, "0 to 2"),
        ("temperature", "hot", "a number"),
        ("temperature", True, "a number"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", -2, "-1 or 0"),
        ("top_k", 1.5, "an integer"),
        ("max_tokens", 0, "1 to"),
        ("max_tokens", -5, "1 to"),
        ("max_tokens", "5", "an integer"),
        ("max_tokens", 2**40, "1 to"),
        ("seed", 2**63, "64-bit"),
        ("seed", "x", "64-bit"),
        ("n", 0, "1 to 128"),
        ("n", 1000, "1 to 128"),
        ("stop", 5, "a string or a list"),
        ("stop", [""], "at least one character"),
        ("stop", ["a", 1], "a string or a list"),
        ("stop_token_ids", [-1], "token ids"),
        ("stop_token_ids", "x", "token ids"),
        ("ignore_eos", "yes", "true or false"),
        ("stream", "yes", "true or false"),
        ("model", 5, "name"),
        ("truncate_prompt_tokens", -2, "-1 for as many"),
        ("truncate_prompt_tokens", "3", "an integer"),
        ("truncation_side", "middle", "'left' or 'right'"),
        ("stream_interval", 0, "from 1"),
        ("request_id", "two words", "without spaces"),
        ("priority", 2**31, "32-bit"),
        ("cache_salt", "", "1 to"),
        ("speculative_decoding", 5, "an object"),
        ("prompt", 5, "a string"),
        ("prompt", None, "a string"),
        ("prompt", [], "at least one"),
        ("prompt", [[]], "at least one"),
        ("prompt", ["a", 1], "one kind"),
        ("prompt", [1, -1], "a token id"),
        ("prompt", [1, 2**31], "a token id"),
        ("prompt", [1, True], "one kind"),
        ("prompt", [1.5], "one kind"),
    ],
)
def test_wrong_values_of_a_completion(field: str, value: object, allowed: str) -> None:
    error = refusal_of(parse_completion, {**COMPLETION, field: value})
    assert error.param == field
    assert error.message.startswith(field)
    assert allowed in error.message


@pytest.mark.parametrize(
    ("messages", "allowed"),
    [
        (None, "a list"),
        ("hi", "a list"),
        ([], "at least one"),
        (["hi"], "an object"),
        ([{"content": "x"}], "a string such as"),
        ([{"role": "user"}], "a string or a list of text parts"),
        ([{"role": "user", "content": 5}], "a string or a list of text parts"),
        ([{"role": "user", "content": [5]}], "an object such as"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only kind supported"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a string"),
    ],
)
def test_wrong_messages(messages: object, allowed: str) -> None:
    error = refusal_of(parse_chat, {**CHAT, "messages": messages})
    assert error.param == "messages"
    assert allowed in error.message


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("documents", "text", "a list of objects"),
        ("documents", ["text"], "a list of objects"),
        ("chat_template", {}, "a Jinja template"),
        ("chat_template_kwargs", [], "an object"),
        ("reasoning_effort", "very", "minimal, low, medium, high"),
    ],
)
def test_wrong_values_of_a_chat(field: str, value: object, allowed: str) -> None:
    error = refusal_of(parse_chat, {**CHAT, field: value})
    assert error.param == field
    assert allowed in error.message


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
        ({"enabled": 1}, "enabled"),
        ({"proposer": ""}, "proposer"),
        ({"k": 3}, "k"),
    ],
)
def test_wrong_speculative_decoding(value: dict[str, object], param: str) -> None:
    error = refusal_of(parse_completion, {**COMPLETION, "speculative_decoding": value})
    assert error.param == f"speculative_decoding.{param}"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"prompt": }', "line 1 column 12"),
        (b"[1]", "must be a JSON object, not an array"),
        (b"null", "not null"),
        (b'"x"', "not a string"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN is not a JSON number"),
        (b'{"prompt": "x", "temperature": Infinity}', "Infinity is not"),
        (b'{"prompt": "\\ud83d"}', "unpaired surrogate"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"seed": 1' + b"0" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_bodies_that_are_no_json_object(raw: bytes, expected: str) -> None:
    error = refusal_of(parse_json_object, raw)  # type: ignore[arg-type]
    assert expected in error.message


def test_required_fields() -> None:
    for parser, field in ((parse_completion, "prompt"), (parse_chat, "messages")):
        error = refusal_of(parser, {"model": MODEL})
        assert error.param == field
        assert "required" in error.message


@pytest.mark.parametrize(
    ("parser", "body", "param"),
    [
        (parse_completion, {**COMPLETION, "stream_options": {}}, "stream_options"),
        (parse_completion, {**COMPLETION, "n": 2, "temperature": 0}, "n"),
        (
            parse_chat,
            {**CHAT, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (parse_tokenize, {}, "prompt"),
        (parse_tokenize, {"prompt": "x", "messages": CHAT["messages"]}, "prompt"),
    ],
)
def test_fields_that_contradict_each_other(parser: Any, body: dict[str, Any], param: str) -> None:
    assert refusal_of(parser, body).param == param


def test_unknown_and_harmless_fields_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "gateway.requests")
    parse_chat({**CHAT, "never_heard_of": 1, "parallel_tool_calls": False, "metadata": {"a": "b"}})
    assert [record.args for record in caplog.records] == [("never_heard_of",)]


def test_null_means_the_default() -> None:
    fields = ["temperature", "top_p", "seed", "stop", "n", "stream", "stream_options"]
    fields += ["stop_token_ids", "ignore_eos", "speculative_decoding", "cache_salt", "echo"]
    parsed = parse_completion(COMPLETION | dict.fromkeys(fields))
    assert parsed.choices_per_prompt == 1
    assert parsed.stop == []


def test_long_values_are_shown_short() -> None:
    error = refusal_of(parse_completion, {**COMPLETION, "temperature": "9" * 10_000})
    assert len(error.message) < 200


def test_detokenize_body() -> None:
    assert parse(DetokenizeBody, {"tokens": [1, 2]}).tokens == [1, 2]
    for body in ({}, {"tokens": ["a"]}, {"tokens": [-1]}, {"tokens": 5}):
        assert refusal_of(lambda b: parse(DetokenizeBody, b), body).param == "tokens"
