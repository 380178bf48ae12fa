"""The `prediction` field: OpenAI's shapes in, one text to the verifier, clear refusals."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gateway.errors import ApiError
from gateway.requests import parse_chat, parse_completion
from tests.gateway.fake_verifier import MODEL, FakeVerifier

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a = 1\n", "a = 1\n"),
        ("", ""),
        ([part("a = "), part("1\n")], "a = 1\n"),
        ([part("")], ""),
    ],
)
async def test_the_predicted_text_reaches_the_verifier(
    client: openai.AsyncOpenAI, verifier: FakeVerifier, content: Any, text: str
) -> None:
    await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, prediction={"type": "content", "content": content}
    )
    (request,) = verifier.requests
    assert request.HasField("prediction")
    assert request.prediction.text == text


@pytest.mark.parametrize("extra", [{}, {"prediction": None}])
async def test_without_one_none_is_sent(
    client: openai.AsyncOpenAI, verifier: FakeVerifier, extra: dict[str, Any]
) -> None:
    await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra)
    assert not verifier.requests[0].HasField("prediction")


async def test_each_choice_has_it(client: openai.AsyncOpenAI, verifier: FakeVerifier) -> None:
    prediction = {"type": "content", "content": "x"}
    await client.completions.create(
        model=MODEL, prompt=["a", "b"], n=2, extra_body={"prediction": prediction}
    )
    assert [request.prediction.text for request in verifier.requests] == ["x"] * 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "prediction: 'text' is not allowed; must be an object such as {'type': 'content'"),
        (["x"], "prediction: ['x'] is not allowed"),
        ({}, "prediction.type: null is not allowed; must be 'content'"),
        ({"type": "text", "content": "x"}, "prediction.type: 'text' is not allowed"),
        (
            {"type": "content"},
            "prediction.content: null is not allowed; must be a string or a list",
        ),
        ({"type": "content", "content": 5}, "prediction.content: 5 is not allowed"),
        ({"type": "content", "content": []}, "prediction.content: [] is not allowed"),
        (
            {"type": "content", "content": ["x"]},
            "prediction.content[0]: 'x' is not allowed; must be an object such as {'type': 'text'",
        ),
        (
            {"type": "content", "content": [part("x"), {"type": "image_url"}]},
            "prediction.content[1].type: 'image_url' is not allowed; must be 'text'",
        ),
        (
            {"type": "content", "content": [{"type": "text", "text": None}]},
            "prediction.content[0].text: null is not allowed; must be a string",
        ),
        ({"type": "content", "content": "x", "k": 1}, "without k"),
    ],
)
def test_other_shapes_are_refused_by_name(value: Any, message: str) -> None:
    for parse, body in (
        (parse_chat, {"messages": MESSAGES}),
        (parse_completion, {"prompt": "x"}),
    ):
        with pytest.raises(ApiError) as caught:
            parse({**body, "prediction": value})
        assert caught.value.status == 400
        assert caught.value.param == "prediction"
        assert message in caught.value.message
