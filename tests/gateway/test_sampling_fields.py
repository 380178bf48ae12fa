"""Sampling fields over HTTP: what is refused in which words, and what the verifier is told."""

from __future__ import annotations

from typing import Any

import pytest
from speculation.v1 import verifier_pb2 as pb

from gateway.calls import chat_request, completion_request, for_choice
from gateway.errors import ApiError
from gateway.requests import parse_chat, parse_completion
from gateway.settings import GatewaySettings

COMPLETION: dict[str, Any] = {"prompt": "x"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
EVERYTHING: dict[str, Any] = {
    "min_p": 0.25,
    "min_tokens": 3,
    "presence_penalty": -1.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.25,
    "logit_bias": {"5": 3, "7": -0.5},
    "bad_words": ["no", "never"],
    "allowed_token_ids": [1, 2, 3],
}


def told(parser: Any, body: dict[str, Any]) -> pb.SamplingParams:
    parsed = parser(body)
    settings = GatewaySettings(verifiers=("unix:unused",))
    if parser is parse_chat:
        return chat_request(parsed, "m", settings).sampling
    return completion_request(parsed, "x", "m", settings).sampling


@pytest.mark.parametrize(
    ("parser", "body"), [(parse_completion, COMPLETION), (parse_chat, CHAT)], ids=["text", "chat"]
)
def test_every_field_reaches_the_verifier(parser: Any, body: dict[str, Any]) -> None:
    sampling = told(parser, {**body, **EVERYTHING})
    for name, value in EVERYTHING.items():
        sent = getattr(sampling, name)
        if name == "logit_bias":
            assert dict(sent) == {5: 3.0, 7: -0.5}
        elif isinstance(value, list):
            assert list(sent) == value
        else:
            assert sent == value


@pytest.mark.parametrize(
    ("parser", "body"), [(parse_completion, COMPLETION), (parse_chat, CHAT)], ids=["text", "chat"]
)
def test_what_is_left_out_stays_unset(parser: Any, body: dict[str, Any]) -> None:
    """So that the model's own defaults apply; null is the same as leaving out."""
    for extra in ({}, dict.fromkeys(EVERYTHING)):
        sampling = told(parser, {**body, **extra})
        set_fields = {field.name for field, _ in sampling.ListFields()}
        assert not set_fields & EVERYTHING.keys()


def test_zero_is_told_apart_from_unset() -> None:
    sampling = told(parse_completion, {**COMPLETION, "min_p": 0, "presence_penalty": 0})
    assert sampling.HasField("min_p") and sampling.HasField("presence_penalty")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("min_p", -0.1, "a number from 0 to 1"),
        ("min_p", 1.1, "a number from 0 to 1"),
        ("min_p", True, "a number from 0 to 1"),
        ("min_tokens", -1, "an integer from 0"),
        ("min_tokens", 1.5, "an integer from 0"),
        ("presence_penalty", 2.1, "a number from -2 to 2"),
        ("frequency_penalty", -2.1, "a number from -2 to 2"),
        ("frequency_penalty", "x", "a number from -2 to 2"),
        ("repetition_penalty", 0, "a number above 0"),
        ("repetition_penalty", 1e39, "a number above 0"),
        ("logit_bias", [1], "an object of token ids and numbers"),
        ("logit_bias", {"a": 1}, "the key 'a' is not a token id"),
        ("logit_bias", {"-1": 1}, "the key '-1' is not a token id"),
        ("logit_bias", {"2147483648": 1}, "is not a token id"),
        ("logit_bias", {"5": "x"}, "must be a number from -100 to 100"),
        ("logit_bias", {"5": True}, "must be a number from -100 to 100"),
        ("logit_bias", {"5": None}, "must be a number from -100 to 100"),
        ("bad_words", "no", "a list of strings"),
        ("bad_words", [5], "a list of strings"),
        ("allowed_token_ids", [], "one or more token ids"),
        ("allowed_token_ids", [-1], "one or more token ids"),
        ("allowed_token_ids", 5, "one or more token ids"),
    ],
)
def test_wrong_values_are_named(field: str, value: object, allowed: str) -> None:
    for parser, body in ((parse_completion, COMPLETION), (parse_chat, CHAT)):
        with pytest.raises(ApiError) as caught:
            parser({**body, field: value})
        assert (caught.value.status, caught.value.param) == (400, field)
        assert caught.value.message.startswith(field)
        assert allowed in caught.value.message


def test_a_bias_beyond_a_float32_is_cut_for_the_verifier_to_clamp() -> None:
    sampling = told(parse_completion, {**COMPLETION, "logit_bias": {"1": 1e300, "2": -(10**400)}})
    assert sampling.logit_bias[1] > 100
    assert sampling.logit_bias[2] < -100


@pytest.mark.parametrize(("seed", "numbers"), [(7, (7, 8, 9)), (2**63 - 1, (2**63 - 1, -(2**63)))])
def test_choices_have_successive_seeds(seed: int, numbers: tuple[int, ...]) -> None:
    request = pb.GenerateRequest(sampling=pb.SamplingParams(seed=seed, min_p=0.5))
    for number, wanted in enumerate(numbers):
        copy = for_choice(request, request_id="r", number=number, seed=seed)
        assert (copy.sampling.seed, copy.sampling.min_p) == (wanted, 0.5)


def test_choices_without_a_seed_leave_it_to_the_verifier() -> None:
    request = pb.GenerateRequest(sampling=pb.SamplingParams())
    for number in range(3):
        copy = for_choice(request, request_id="r", number=number, seed=None)
        assert not copy.sampling.HasField("seed")
