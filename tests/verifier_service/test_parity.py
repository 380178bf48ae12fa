"""Every parameter of GenerateRequest, through the real servicer, arrives at the core.

The tables are compared with the protos and the messages field by field: a new parameter that
nobody passes on, or that nobody can set, fails here.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import FakeCore, rounds
from tests.verifier_service.serving import Client, Reply, encode, serving
from verifier_service.messages import FinishReason, Output, Request, Sampling, TokenLogprob
from verifier_service.proposer_state import LinkState, ProposerState

ANSWER = "a dog<|start|> and STOP the rest"
END = encode(".")[0]

# What the core was given, and what the client was told.
Check = Callable[[Request, Reply], object]


def reached(name: str, value: object) -> Check:
    """The field of the same name in `Sampling` has this value."""
    return lambda request, _: getattr(request.sampling, name) == value


SAMPLING: dict[str, tuple[Any, Check]] = {
    "temperature": (0.25, reached("temperature", 0.25)),
    "top_p": (0.5, reached("top_p", 0.5)),
    "top_k": (7, reached("top_k", 7)),
    "seed": (-5, reached("seed", -5)),
    "max_tokens": (40, reached("max_tokens", 40)),
    "stop": (["STOP"], lambda _, reply: reply.text == "a dog and "),
    "stop_token_ids": ([5], reached("stop_token_ids", frozenset({5, END}))),
    "ignore_eos": (True, reached("stop_token_ids", frozenset())),
    "min_tokens": (3, reached("min_tokens", 3)),
    "include_stop_str_in_output": (True, lambda _, reply: reply.text.endswith("rest.")),
    "skip_special_tokens": (False, lambda _, reply: "<|start|>" in reply.text),
    "min_p": (0.125, reached("min_p", 0.125)),
    "presence_penalty": (0.5, reached("presence_penalty", 0.5)),
    "frequency_penalty": (-0.5, reached("frequency_penalty", -0.5)),
    "repetition_penalty": (1.5, reached("repetition_penalty", 1.5)),
    "logit_bias": ({9: 2.5}, reached("logit_bias", ((9, 2.5),))),
    "bad_words": (["cat"], lambda r, _: tuple(encode("cat")) in r.sampling.bad_words),
    "allowed_token_ids": ([8, 9], reached("allowed_token_ids", (8, 9))),
    "logprobs": (2, lambda r, reply: r.sampling.logprobs == 2 and reply.deltas[0].logprobs),
    "prompt_logprobs": (
        0,
        lambda r, reply: r.sampling.prompt_logprobs == 0 and reply.started.prompt_logprobs,
    ),
}


def drafted(request: Request) -> list[int]:
    """What the request's own prediction drafts for the beginning of the answer."""
    if request.prediction is None:
        return []
    block = request.prediction.block(request.prompt_ids, len(request.prompt_ids), 9)
    return [] if block is None else list(block.token_ids)


CHAT = pb.ChatMessages(messages_json=json.dumps([{"role": "user", "content": "a cat"}]))
REQUEST: dict[str, tuple[Any, Check]] = {
    "request_id": ("mine", lambda r, reply: r.request_id == reply.started.request_id == "mine"),
    "text": ("a dog", lambda r, _: r.prompt_ids == encode("a dog")),
    "token_ids": (pb.TokenIds(ids=[5, 6]), lambda r, _: r.prompt_ids == [5, 6]),
    "chat": (CHAT, lambda r, _: r.prompt_ids == encode("<|start|>user\na cat<|end|>")),
    "sampling": (pb.SamplingParams(top_k=3), lambda r, _: r.sampling.top_k == 3),
    "speculation": (
        pb.SpeculationParams(num_speculative_tokens=2),
        lambda r, _: r.num_speculative_tokens == 2,
    ),
    "detokenize": (False, lambda _, reply: reply.text == "" and reply.token_ids),
    "add_special_tokens": (False, lambda r, _: r.prompt_ids == encode("the cat")),
    "detailed_acceptance": (True, lambda _, reply: reply.finished.acceptance.per_step_drafted),
    "include_rounds": (True, lambda _, reply: reply.rounds),
    "priority": (-3, lambda r, _: r.priority == -3),
    "cache_salt": ("salt", lambda r, _: r.cache_salt == "salt"),
    "model": ("toy", lambda _, reply: reply.finished),
    "structured": (pb.StructuredOutput(regex="[a-z]+"), lambda r, _: r.constraint is not None),
    "truncate_prompt_tokens": (1, lambda r, _: r.prompt_ids == encode("the cat")[-1:]),
    "prediction": (pb.Prediction(text="a dog"), lambda r, _: drafted(r) == encode("a dog")),
    "workload": ("code", lambda _, reply: reply.finished),
    "stream_interval": (99, lambda _, reply: len(reply.token_ids) == len(encode(ANSWER)) + 1),
    "truncate_right": (True, lambda r, _: len(r.prompt_ids) == len(encode("the cat"))),
}

SPECULATION: dict[str, tuple[Any, Check]] = {
    "enabled": (False, lambda r, _: r.num_speculative_tokens == 0),
    "num_speculative_tokens": (3, lambda r, _: r.num_speculative_tokens == 3),
    "proposer": ("mine", lambda r, _: r.proposer == "mine"),
}

STRUCTURED: dict[str, Any] = {
    "json_schema": '{"type": "object"}',
    "json_object": True,
    "regex": "[a-z]+",
    "choice": pb.Choices(strings=["yes", "no"]),
    "grammar": 'root ::= "yes" | "no"',
    "structural_tag": json.dumps(
        {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": "<a>",
                "content": {"type": "json_schema", "json_schema": {}},
                "end": "</a>",
            },
        }
    ),
}


class Attached:
    """One proposer, of the name that the table asks for."""

    def states(self) -> list[ProposerState]:
        return [ProposerState("mine", "ngram", "unix:/n", LinkState.CONNECTED)]


def core() -> FakeCore:
    return FakeCore(answer, eos_token_ids=(END,))


def answer(request: Request) -> list[Output]:
    """`ANSWER` with the log-probabilities that the request asks for."""
    outputs = rounds(
        [*encode(ANSWER), END], per_round=3, reason=FinishReason.STOP, stop_token_id=END
    )
    if request.sampling.logprobs >= 0:
        outputs = [replace(o, logprobs=tuple(map(logprob, o.token_ids))) for o in outputs]
    if request.sampling.prompt_logprobs >= 0:
        told = tuple(map(logprob, request.prompt_ids[1:]))
        outputs[0] = replace(outputs[0], prompt_logprobs=told)
    return outputs


def logprob(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, -0.5, 1, ((token_id, -0.5), (0, -1.5)))


async def asked(client: Client, message: pb.GenerateRequest) -> tuple[Request, Reply]:
    reply = await client.generate(message)
    return client.core.submitted[-1], reply


def test_the_tables_are_complete() -> None:
    for message, table in (
        (pb.SamplingParams, SAMPLING),
        (pb.GenerateRequest, REQUEST),
        (pb.SpeculationParams, SPECULATION),
    ):
        assert set(message.DESCRIPTOR.fields_by_name) == set(table)
    oneof = pb.StructuredOutput.DESCRIPTOR.oneofs_by_name["constraint"]
    assert {field.name for field in oneof.fields} == set(STRUCTURED)


@pytest.mark.parametrize("name", SAMPLING)
async def test_a_sampling_parameter_arrives(socket_dir: Path, name: str) -> None:
    value, check = SAMPLING[name]
    async with serving(core(), socket_dir) as client:
        plain = await asked(client, pb.GenerateRequest(text="the cat"))
        message = pb.GenerateRequest(text="the cat", sampling=pb.SamplingParams(**{name: value}))
        sent = await asked(client, message)
    assert check(*sent)
    assert not check(*plain), "the check would pass without the parameter"


@pytest.mark.parametrize("name", REQUEST)
async def test_a_request_parameter_arrives(socket_dir: Path, name: str) -> None:
    value, check = REQUEST[name]
    async with serving(core(), socket_dir) as client:
        prompt = {} if name in ("text", "token_ids", "chat") else {"text": "the cat"}
        assert check(*await asked(client, pb.GenerateRequest(**prompt, **{name: value})))


@pytest.mark.parametrize("name", SPECULATION)
async def test_a_speculation_parameter_arrives(socket_dir: Path, name: str) -> None:
    value, check = SPECULATION[name]
    speculation = pb.SpeculationParams(**{name: value})
    async with serving(core(), socket_dir, proposers=Attached()) as client:
        message = pb.GenerateRequest(text="the cat", speculation=speculation)
        assert check(*await asked(client, message))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def constraining() -> AsyncIterator[Client]:
    """What tries grammars takes seconds of work to start."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    async with serving(core(), folder) as client:
        yield client
    shutil.rmtree(folder)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", STRUCTURED)
async def test_a_constraint_arrives(constraining: Client, name: str) -> None:
    structured = pb.StructuredOutput(**{name: STRUCTURED[name]})
    sent = len(constraining.core.submitted)
    request, _ = await asked(constraining, pb.GenerateRequest(text="x", structured=structured))
    assert len(constraining.core.submitted) == sent + 1
    assert request.constraint is not None
    assert not request.constraint.ended


async def test_every_field_of_the_cores_sampling_can_be_set(socket_dir: Path) -> None:
    changed: set[str] = set()
    async with serving(core(), socket_dir) as client:
        fixed = {"seed": 1}
        plain, _ = await asked(
            client, pb.GenerateRequest(text="the cat", sampling=pb.SamplingParams(**fixed))
        )
        for name, (value, _check) in SAMPLING.items():
            sampling = pb.SamplingParams(**{**fixed, name: value})
            sent, _ = await asked(client, pb.GenerateRequest(text="the cat", sampling=sampling))
            changed |= {
                field.name
                for field in fields(Sampling)
                if getattr(sent.sampling, field.name) != getattr(plain.sampling, field.name)
            }
    assert changed == {field.name for field in fields(Sampling)}
