"""Prompts of which only a part is kept: which part, and that special tokens stay."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb
from tokenizers import Tokenizer, processors

from tests.verifier_service.serving import answering, encode, field_of, refusal, request, serving
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.request_error import RequestError
from verifier_service.text import Text
from verifier_service.truncation import Truncation, truncation_of

PROMPT = "the cat sat on the mat"


def truncating(keep: int, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=PROMPT, truncate_prompt_tokens=keep, **fields)


def test_nothing_is_cut_unless_asked() -> None:
    assert truncation_of(pb.GenerateRequest(text=PROMPT), 100, 5) is None


@pytest.mark.parametrize(
    ("asked", "reserved", "kept"),
    [(3, 5, 3), (100, 5, 100), (-1, 5, 95), (-1, 0, 99), (-1, 1, 99), (-1, 500, 1)],
)
def test_how_many_are_kept(asked: int, reserved: int, kept: int) -> None:
    assert truncation_of(truncating(asked), 100, reserved) == Truncation(kept)


@pytest.mark.parametrize("asked", [0, -2, 101])
def test_what_cannot_be_kept_is_refused(asked: int) -> None:
    with pytest.raises(RequestError, match=f"truncate_prompt_tokens {asked} is not allowed") as e:
        truncation_of(truncating(asked), 100, 1)
    assert e.value.field == "truncate_prompt_tokens"
    assert "1 to 100" in e.value.message


def test_either_end_of_ids_and_text_is_kept() -> None:
    assert Truncation(2).ids([1, 2, 3]) == [2, 3]
    assert Truncation(2, keep_first=True).ids([1, 2, 3]) == [1, 2]
    assert Truncation(9).ids([1, 2, 3]) == [1, 2, 3]
    assert Truncation(2).text("abcdefgh", 3) == "cdefgh"
    assert Truncation(2, keep_first=True).text("abcdefgh", 3) == "abcdef"


def with_begin_token() -> Text:
    wrapped = copy.deepcopy(byte_level_tokenizer())
    inner: Tokenizer = wrapped.backend_tokenizer
    inner.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", 0)]
    )
    return Text(wrapped)


@pytest.mark.parametrize("keep_first", [False, True])
def test_special_tokens_in_front_count_and_stay(keep_first: bool) -> None:
    text, plain = with_begin_token(), encode(PROMPT)
    assert text.encode(PROMPT, add_special_tokens=True) == [0, *plain]
    kept = plain[:2] if keep_first else plain[-2:]
    cut = Truncation(3, keep_first=keep_first)
    assert text.encode(PROMPT, add_special_tokens=True, truncation=cut) == [0, *kept]
    # The next prompt is not cut.
    assert text.encode(PROMPT, add_special_tokens=True) == [0, *plain]


@pytest.mark.parametrize("keep_first", [False, True])
def test_a_long_text_is_cut_like_a_short_one(keep_first: bool) -> None:
    text = Text(byte_level_tokenizer())
    long = " ".join([PROMPT] * 4000)
    whole = text.encode(long, add_special_tokens=False)
    cut = text.encode(long, add_special_tokens=False, truncation=Truncation(7, keep_first))
    assert cut == (whole[:7] if keep_first else whole[-7:])


async def test_a_truncated_prompt_is_what_is_answered(socket_dir: Path) -> None:
    core, ids = answering(), encode(PROMPT)
    sampling = pb.SamplingParams(max_tokens=510)
    chat = pb.ChatMessages(messages_json=json.dumps([{"role": "user", "content": PROMPT}]))
    async with serving(core, socket_dir) as client:
        reply = await client.generate(truncating(3))
        await client.generate(truncating(3, truncate_right=True))
        await client.generate(truncating(-1, sampling=sampling))
        await client.generate(
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[4, 5, 6]), truncate_prompt_tokens=2)
        )
        await client.generate(pb.GenerateRequest(chat=chat, truncate_prompt_tokens=2))
    assert reply.started is not None and reply.started.prompt_tokens == 3
    prompts = [submitted.prompt_ids for submitted in core.submitted]
    template = encode(f"<|start|>user\n{PROMPT}<|end|>")
    assert prompts == [ids[-3:], ids[:3], ids[-2:], [5, 6], template[-2:]]


async def test_a_text_too_long_to_tokenize_whole_may_be_cut(socket_dir: Path) -> None:
    core = answering()
    message = request("the cat " * 1_000_000)
    message.truncate_prompt_tokens = -1
    message.sampling.max_tokens = 500
    async with serving(core, socket_dir) as client:
        await client.generate(message)
        error = await refusal(client, truncating(513))
    assert len(core.submitted[0].prompt_ids) == 12
    assert (error.code(), field_of(error)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "truncate_prompt_tokens",
    )


async def test_tokenize_truncates_as_generate_does(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        short = await client.stub.Tokenize(
            pb.TokenizeRequest(text=PROMPT, truncate_prompt_tokens=2)
        )
        first = await client.stub.Tokenize(
            pb.TokenizeRequest(text=PROMPT, truncate_prompt_tokens=2, truncate_right=True)
        )
        ids = await client.stub.Tokenize(
            pb.TokenizeRequest(token_ids=pb.TokenIds(ids=[4, 5, 6]), truncate_prompt_tokens=2)
        )
        fitting = await client.stub.Tokenize(
            pb.TokenizeRequest(text=PROMPT, truncate_prompt_tokens=-1, reserved_tokens=509)
        )
    assert list(short.token_ids) == encode(PROMPT)[-2:]
    assert list(first.token_ids) == encode(PROMPT)[:2]
    assert list(ids.token_ids) == [5, 6]
    assert list(fitting.token_ids) == encode(PROMPT)[-3:]
