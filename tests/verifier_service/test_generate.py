"""Generate: what is asked reaches the core, what the core says reaches the client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc
import pytest
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import FakeCore, rounds
from tests.verifier_service.serving import (
    ANSWER,
    WAIT_S,
    answering,
    encode,
    request,
    serving,
)
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.messages import FinishReason
from verifier_service.target_facts import SamplingDefaults


async def test_a_text_prompt_is_answered_in_text_and_ids(socket_dir: Path) -> None:
    core = answering(cached=2)
    async with serving(core, socket_dir) as client:
        reply = await client.generate(request("the cat", seed=-5, max_tokens=40))
    assert core.submitted[0].prompt_ids == encode("the cat")
    assert reply.started is not None and reply.finished is not None
    assert reply.started.seed == core.submitted[0].sampling.seed == -5
    assert reply.started.request_id == core.submitted[0].request_id
    assert reply.started.prompt_tokens == reply.finished.prompt_tokens == len(encode("the cat"))
    assert reply.started.cached_prompt_tokens == reply.finished.cached_prompt_tokens == 2
    assert reply.text == ANSWER
    assert reply.token_ids == encode(ANSWER)
    assert reply.finished.reason == types_pb2.FINISH_REASON_LENGTH
    assert reply.finished.WhichOneof("stop") is None
    assert reply.finished.completion_tokens == len(encode(ANSWER))
    assert 0 < reply.finished.first_token_ns <= reply.finished.total_ns
    assert reply.finished.queue_ns == 7
    assert not reply.rounds


async def test_token_ids_reach_the_core_as_they_are(socket_dir: Path) -> None:
    core = answering()
    async with serving(core, socket_dir) as client:
        await client.generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 0, 399])))
    assert core.submitted[0].prompt_ids == [5, 0, 399]


async def test_chat_messages_go_through_the_template(socket_dir: Path) -> None:
    core = answering()
    chat = pb.ChatMessages(
        messages_json=json.dumps([{"role": "user", "content": "a cat"}]),
        add_generation_prompt=True,
    )
    async with serving(core, socket_dir) as client:
        await client.generate(pb.GenerateRequest(chat=chat))
    expected = encode("<|start|>user\na cat<|end|><|start|>assistant\n")
    assert core.submitted[0].prompt_ids == expected


async def test_a_seed_is_drawn_and_reported_where_none_is_sent(socket_dir: Path) -> None:
    core = answering()
    async with serving(core, socket_dir) as client:
        replies = [await client.generate(request()) for _ in range(2)]
    seeds = [reply.started.seed for reply in replies if reply.started is not None]
    assert seeds == [submitted.sampling.seed for submitted in core.submitted]
    assert seeds[0] != seeds[1]


async def test_unset_sampling_takes_the_models_defaults(socket_dir: Path) -> None:
    core = answering()
    defaults = SamplingDefaults(temperature=0.5, top_p=0.75, top_k=7)
    async with serving(core, socket_dir, defaults=defaults) as client:
        await client.generate(request())
    sampling = core.submitted[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 7)
    assert sampling.max_tokens == 512 - len(encode("the cat"))


async def test_rounds_and_steps_travel_when_asked(socket_dir: Path) -> None:
    core = answering()
    message = request()
    message.include_rounds = message.detailed_acceptance = True
    async with serving(core, socket_dir) as client:
        reply = await client.generate(message)
    assert reply.finished is not None
    assert [r.base for r in reply.rounds] == list(range(0, len(encode(ANSWER)), 3))
    assert sum(r.emitted for r in reply.rounds) == reply.finished.completion_tokens
    steps = [r for r in reply.rounds if r.drafted]
    assert reply.finished.acceptance.num_spec_steps == len(steps)
    assert list(reply.finished.acceptance.per_step_accepted) == [r.accepted for r in steps]


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_cuts_the_round_it_completes_in(
    socket_dir: Path, include: bool
) -> None:
    core = answering(per_round=4)
    message = request(stop=["never", "STOP"], include_stop_str_in_output=include)
    message.include_rounds = True
    async with serving(core, socket_dir) as client:
        reply = await client.generate(message)
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    kept = reply.token_ids
    before = ANSWER[: ANSWER.index("STOP")]
    assert reply.text == (before + "STOP" if include else before)
    assert reply.finished is not None
    assert reply.finished.reason == types_pb2.FINISH_REASON_STOP
    assert reply.finished.stop_string == "STOP"
    # The token that completes the stop string is the last one; what was behind it never was.
    assert "STOP" in byte_level_tokenizer().decode(kept)
    assert "STOP" not in byte_level_tokenizer().decode(kept[:-1])
    assert kept == encode(ANSWER)[: len(kept)]
    assert reply.finished.completion_tokens == len(kept) == sum(r.emitted for r in reply.rounds)
    assert reply.finished.acceptance.num_accepted_draft_tokens == sum(
        r.accepted for r in reply.rounds
    )
    assert info.acceptance == reply.finished.acceptance
    assert info.generation_tokens_total == len(kept)
    assert core.aborted == [core.submitted[0].request_id]


async def test_a_stop_token_is_counted_but_not_shown(socket_dir: Path) -> None:
    dot = encode(".")
    core = FakeCore(
        lambda _: rounds(
            [*encode("a cat"), *dot], per_round=2, reason=FinishReason.STOP, stop_token_id=dot[0]
        )
    )
    async with serving(core, socket_dir) as client:
        reply = await client.generate(request(stop_token_ids=dot))
        shown = await client.generate(request(stop_token_ids=dot, include_stop_str_in_output=True))
    assert reply.text == "a cat"
    assert shown.text == "a cat."
    assert reply.token_ids == [*encode("a cat"), *dot]
    assert reply.finished is not None
    assert reply.finished.stop_token_id == dot[0]
    assert core.aborted == []


async def test_stop_strings_work_without_text_in_deltas(socket_dir: Path) -> None:
    core = answering()
    message = request(stop=["STOP"])
    message.detokenize = False
    async with serving(core, socket_dir) as client:
        reply = await client.generate(message)
    assert reply.finished is not None
    assert reply.finished.stop_string == "STOP"
    assert reply.text == ""


async def test_special_tokens_are_skipped_unless_asked_for(socket_dir: Path) -> None:
    core = answering("a<|start|>cat")
    async with serving(core, socket_dir) as client:
        skipped = await client.generate(request())
        shown = await client.generate(request(skip_special_tokens=False))
    assert (skipped.text, shown.text) == ("acat", "a<|start|>cat")


async def test_acceptance_is_told_before_the_first_output(socket_dir: Path) -> None:
    core = answering()
    core.hold = True
    async with serving(core, socket_dir) as client:
        call = client.stub.Generate(request())
        told = await asyncio.wait_for(call.initial_metadata(), WAIT_S)
        assert dict(told)["outrider-accepted"] == "1"
        assert len(core.submitted) == 1
        core.full = True
        refused = client.stub.Generate(request())
        assert "outrider-accepted" not in dict(await refused.initial_metadata() or ())
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        core.step(100)
        assert [m.WhichOneof("message") async for m in call][-1] == "finished"
