"""Objects made of the verifier's messages, and what is refused before it is asked."""

from __future__ import annotations

import math
from typing import Any

import grpc
import openai
import pytest
from speculation.v1 import verifier_pb2 as pb

from gateway.errors import FIELD_METADATA_KEY, ApiError
from gateway.logprobs import (
    LogprobOptions,
    TextOffset,
    chat_logprobs,
    completion_logprobs,
    logprob_options,
    prompt_logprobs,
)
from gateway.requests import parse_chat, parse_completion
from tests.gateway.fake_verifier import MODEL, Answer, FakeVerifier

SMILE = "🙂".encode()
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def entries(pieces: list[bytes]) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(token_id=i, logprob=-1.0, rank=1, token_bytes=piece)
        for i, piece in enumerate(pieces)
    ]


def test_parts_of_a_character_keep_their_bytes_and_share_its_place() -> None:
    pieces = [b"a", SMILE[:2], SMILE[2:3], SMILE[3:], "é!".encode(), b"z"]
    found = completion_logprobs(entries(pieces), LogprobOptions(0), TextOffset())
    assert found["tokens"] == ["a", "\ufffd", "\ufffd", "\ufffd", "é!", "z"]
    text = b"".join(pieces).decode()
    assert found["text_offset"] == [0, 1, 1, 1, 2, 4]
    assert text[4] == "z"
    content = chat_logprobs(entries(pieces), LogprobOptions(0))["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content) == b"".join(pieces)


def test_offsets_go_on_over_the_parts_of_a_stream() -> None:
    pieces = [b"ab", SMILE[:1], SMILE[1:], b"c"]
    whole = completion_logprobs(entries(pieces), LogprobOptions(0), TextOffset())["text_offset"]
    offset = TextOffset()
    parts = [
        completion_logprobs(entries([piece]), LogprobOptions(0), offset)["text_offset"][0]
        for piece in pieces
    ]
    assert parts == whole == [0, 2, 2, 3]


def test_of_tokens_that_look_the_same_the_first_counts() -> None:
    (entry,) = entries([SMILE[:1]])
    entry.top.add(token_id=7, logprob=-0.5, token_bytes=SMILE[:2])
    entry.top.add(token_id=8, logprob=-0.75, token_bytes=b"x")
    shown = completion_logprobs([entry], LogprobOptions(2), TextOffset())["top_logprobs"]
    assert shown == [{"\ufffd": -1.0, "x": -0.75}]
    as_ids = LogprobOptions(2, as_ids=True)
    shown = completion_logprobs([entry], as_ids, TextOffset())["top_logprobs"]
    assert list(shown[0]) == ["token_id:0", "token_id:7", "token_id:8"]


def test_the_token_is_among_its_own_top_tokens_once() -> None:
    (entry,) = entries([b"a"])
    entry.top.add(token_id=0, logprob=-1.0, token_bytes=b"a")
    entry.top.add(token_id=1, logprob=-2.0, token_bytes=b"b")
    shown = completion_logprobs([entry], LogprobOptions(1), TextOffset())["top_logprobs"]
    assert shown == [{"a": -1.0}]


def test_an_impossible_token_is_shown_as_openai_and_vllm_do() -> None:
    entry = pb.TokenLogprob(token_id=3, logprob=-math.inf, rank=9, token_bytes=b"a")
    entry.top.add(token_id=4, logprob=-math.inf, token_bytes=b"b")
    found = completion_logprobs([entry], LogprobOptions(1), TextOffset())
    assert found["token_logprobs"] == [-9999.0]
    assert found["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]
    content = chat_logprobs([entry], LogprobOptions(1))["content"]
    assert content[0]["logprob"] == content[0]["top_logprobs"][0]["logprob"] == -9999.0
    told = prompt_logprobs(pb.Started(prompt_logprobs=[entry]), LogprobOptions(prompt=1))
    assert told is not None and told[1] is not None
    assert {figures["logprob"] for figures in told[1].values()} == {-9999.0}


def test_a_prompt_of_one_token_has_one_null() -> None:
    started = pb.Started(prompt_token_ids=[5], first_token_bytes=b"x")
    assert prompt_logprobs(started, LogprobOptions(prompt=2)) == [None]
    assert prompt_logprobs(started, LogprobOptions(output=2)) is None


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (LogprobOptions(), None),
        (LogprobOptions(output=3), None),
        (LogprobOptions(output=3, echoed=True), 3),
        (LogprobOptions(output=3, prompt=5, echoed=True), 5),
        (LogprobOptions(output=7, prompt=5, echoed=True), 7),
        (LogprobOptions(output=7, prompt=0), 0),
        (LogprobOptions(output=-1, prompt=5, echoed=True), -1),
        (LogprobOptions(output=None, prompt=5, echoed=True), 5),
    ],
)
def test_what_the_verifier_tells_of_the_prompt_serves_both(
    options: LogprobOptions, count: int | None
) -> None:
    assert options.of_prompt == count


def test_options_of_bodies() -> None:
    assert logprob_options(parse_completion({"prompt": "x", "logprobs": 0})).output == 0
    assert logprob_options(parse_completion({"prompt": "x", "echo": True})) == LogprobOptions()
    assert logprob_options(parse_chat(CHAT | {"logprobs": True})).output == 0
    assert logprob_options(parse_chat(CHAT | {"logprobs": True, "top_logprobs": -1})).output == -1
    assert logprob_options(parse_chat(CHAT | {"top_logprobs": 0})).output is None


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"prompt": "x", "logprobs": -2}, "logprobs", "or -1 for all"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "an integer"),
        ({"prompt": "x", "logprobs": 1.5}, "logprobs", "an integer"),
        ({"prompt": "x", "prompt_logprobs": "1"}, "prompt_logprobs", "an integer"),
        ({"prompt": "x", "prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "stream"),
        ({"prompt": "x", "return_tokens_as_token_ids": 1}, "return_tokens_as_token_ids", "true"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "without echo"),
        ({"prompt": "x", "max_tokens": -1, "echo": True}, "max_tokens", "an integer from 1"),
        ({**CHAT, "logprobs": 3}, "logprobs", "true or false"),
        ({**CHAT, "top_logprobs": 3}, "top_logprobs", "logprobs=true"),
        ({**CHAT, "top_logprobs": -1, "logprobs": False}, "top_logprobs", "logprobs=true"),
        ({**CHAT, "top_logprobs": -2, "logprobs": True}, "top_logprobs", "or -1 for all"),
        ({**CHAT, "max_tokens": 0, "echo": True}, "max_tokens", "an integer from 1"),
        ({**CHAT, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
    ],
)
def test_refusals(body: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        (parse_completion if "prompt" in body else parse_chat)(body)
    assert (caught.value.status, caught.value.param) == (400, field)
    assert words in caught.value.message


async def test_a_verifiers_refusal_names_the_field_that_the_client_used(
    client: openai.AsyncOpenAI, verifier: FakeVerifier
) -> None:
    verifier.script = lambda request: Answer(
        status=grpc.StatusCode.INVALID_ARGUMENT,
        message="logprobs 30 is not allowed: it must be from 0 to 20",
        metadata=((FIELD_METADATA_KEY, "logprobs"),),
    )
    messages: Any = CHAT["messages"]
    with pytest.raises(openai.BadRequestError) as chat:
        await client.chat.completions.create(
            model=MODEL, messages=messages, logprobs=True, top_logprobs=30
        )
    assert chat.value.param == "top_logprobs"
    assert "top_logprobs 30 is not allowed: it must be" in str(chat.value)
    with pytest.raises(openai.BadRequestError) as text:
        await client.completions.create(model=MODEL, prompt="x", logprobs=30)
    assert text.value.param == "logprobs"
