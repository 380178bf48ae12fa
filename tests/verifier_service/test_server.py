from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import FakeCore, rounds
from tests.verifier_service.serving import WAIT_S, Client, encode, request, serving, until
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.core import CoreStats
from verifier_service.messages import FinishReason, Output, Request
from verifier_service.proposer_state import LinkState, ProposerState
from verifier_service.target_facts import SamplingDefaults

ANSWER = "über a dog 🙂 and STOP the rest"


def answering(text: str = ANSWER, *, per_round: int = 3, cached: int = 0) -> FakeCore:
    return FakeCore(lambda _: rounds(encode(text), per_round=per_round, cached=cached))


async def refusal(client: Client, message: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.generate(message)
    return caught.value


def metadata_of(error: grpc.aio.AioRpcError) -> dict[str, str]:
    pairs: Any = error.trailing_metadata()
    return dict(pairs)


def field_of(error: grpc.aio.AioRpcError) -> str | None:
    return metadata_of(error).get("outrider-field")


async def health_of(client: Client, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(client.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(reply.status)


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


async def test_a_cancelled_stream_is_aborted_and_counted_once(socket_dir: Path) -> None:
    core = answering(per_round=2)
    core.hold = True
    async with serving(core, socket_dir) as client:
        call = client.stub.Generate(request())
        core.step(3)
        received: list[int] = []
        while len(received) < 6:
            message = await call.read()
            received += message.delta.token_ids
        call.cancel()
        await until(lambda: core.aborted == [core.submitted[0].request_id])
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    assert info.generation_tokens_total == 6
    assert info.acceptance.num_accepted_draft_tokens == 3
    assert dict(info.finished_requests) == {"abort": 1}


async def test_a_deadline_aborts_the_core(socket_dir: Path) -> None:
    core = answering()
    core.hold = True
    async with serving(core, socket_dir) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in client.stub.Generate(request(), timeout=0.2):
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: core.aborted == [core.submitted[0].request_id])


async def test_totals_are_the_sum_over_requests(socket_dir: Path) -> None:
    core = FakeCore(
        lambda r: rounds(encode(ANSWER), per_round=1 + len(core.submitted) % 5, off_reason="slow")
    )
    async with serving(core, socket_dir) as client:
        replies = await asyncio.gather(
            *(client.generate(request(stop=["STOP"] if i % 2 else [])) for i in range(12))
        )
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    ends = [reply.finished for reply in replies if reply.finished is not None]
    assert info.generation_tokens_total == sum(e.completion_tokens for e in ends)
    assert info.prompt_tokens_total == sum(e.prompt_tokens for e in ends)
    for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        assert getattr(info.acceptance, name) == sum(getattr(e.acceptance, name) for e in ends)
    histograms = zip(*(e.acceptance.acceptance_histogram for e in ends), strict=True)
    assert list(info.acceptance.acceptance_histogram) == [sum(column) for column in histograms]
    assert info.off_rounds["slow"] > 0
    assert dict(info.finished_requests) == {"stop": 6, "length": 6}


async def test_a_refusal_names_the_field_in_text_and_metadata(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        error = await refusal(client, request(temperature=3))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "temperature 3 is not allowed: it must be from 0 to 2"
        assert field_of(error) == "temperature"
        error = await refusal(client, pb.GenerateRequest())
        assert (error.code(), field_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "prompt")
        error = await refusal(client, request(""))
        assert field_of(error) == "prompt"
        error = await refusal(client, pb.GenerateRequest(chat=pb.ChatMessages(messages_json="[")))
        assert field_of(error) == "messages"
        error = await refusal(client, pb.GenerateRequest(text="a", model="other"))
        assert (error.code(), field_of(error)) == (grpc.StatusCode.NOT_FOUND, "model")
    assert client.core.submitted == []


async def test_a_prompt_far_too_long_is_refused_before_tokenizing(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        error = await refusal(client, request("a" * 8_000_000))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "8000000 characters" in (error.details() or "")
    assert metadata_of(error)["outrider-code"] == "context_length_exceeded"


async def test_a_message_over_the_size_limit_harms_nobody_else(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        error = await refusal(client, request("a" * (33 * 1024 * 1024)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.generate(request())).text == ANSWER


async def test_a_running_request_id_cannot_be_used_twice(socket_dir: Path) -> None:
    core = answering()
    core.hold = True
    message = request()
    message.request_id = "mine"
    async with serving(core, socket_dir) as client:
        first = asyncio.create_task(client.generate(message))
        await until(lambda: len(core.submitted) == 1)
        error = await refusal(client, message)
        assert field_of(error) == "request_id"
        core.step(100)
        reply = await first
        assert reply.started is not None and reply.started.request_id == "mine"
        assert (await client.generate(message)).text == ANSWER


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


async def test_a_full_queue_is_resource_exhausted(socket_dir: Path) -> None:
    core = answering()
    core.full = True
    async with serving(core, socket_dir) as client:
        error = await refusal(client, request())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "try again later" in (error.details() or "")


async def test_a_dead_engine_fails_its_streams_and_takes_no_more(socket_dir: Path) -> None:
    core = answering()
    core.hold = True
    async with serving(core, socket_dir) as client:
        assert await health_of(client) == health_pb2.HealthCheckResponse.SERVING
        running = asyncio.create_task(client.generate(request()))
        await until(lambda: len(core.submitted) == 1)
        core.die("out of memory\nTraceback (most recent call last)")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert caught.value.details() == "the engine failed this request: out of memory"
        error = await refusal(client, request())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "out of memory" in (error.details() or "")
        for service in ("", "speculation.v1.VerifierService"):
            assert await health_of(client, service) == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_an_engine_that_dies_in_silence_is_noticed(socket_dir: Path) -> None:
    core = answering()
    core.hold = True
    async with serving(core, socket_dir) as client:
        running = asyncio.create_task(client.generate(request()))
        await until(lambda: len(core.submitted) == 1)
        core.failure = "thread ended"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "thread ended" in (caught.value.details() or "")


async def test_an_engine_that_dies_while_it_is_asked_is_unavailable(socket_dir: Path) -> None:
    def dying(_: Request) -> list[Output]:
        core.failure = "device lost"
        raise RuntimeError("the engine is dead")

    core = FakeCore(dying)
    async with serving(core, socket_dir) as client:
        error = await refusal(client, request())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "device lost" in (error.details() or "")


async def test_an_unexpected_error_shows_an_id_and_logs_the_rest(
    socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Request) -> list[Output]:
        raise ZeroDivisionError("secret detail")

    async with serving(FakeCore(broken), socket_dir) as client:
        with caplog.at_level(logging.ERROR):
            error = await refusal(client, request())
    details = error.details() or ""
    assert error.code() is grpc.StatusCode.INTERNAL
    assert details.startswith("internal error, id ")
    assert "secret" not in details
    assert details.split()[-1] in caplog.text and "ZeroDivisionError" in caplog.text


async def test_an_output_that_contradicts_itself_fails_that_request_only(socket_dir: Path) -> None:
    good = rounds(encode(ANSWER), per_round=3)

    def script(r: Request) -> list[Output]:
        if r.prompt_ids != encode("bad"):
            return good
        return [Output(token_ids=(1, 2), round=good[0].round)]

    async with serving(FakeCore(script), socket_dir) as client:
        error = await refusal(client, request("bad"))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert (await client.generate(request())).text == ANSWER
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    assert info.generation_tokens_total == len(encode(ANSWER))
    assert dict(info.finished_requests) == {"error": 1, "length": 1}


async def test_info_tells_model_limits_proposers_and_state(socket_dir: Path) -> None:
    class Proposers:
        def states(self) -> list[ProposerState]:
            return [
                ProposerState(
                    "ngram", "ngram", "unix:/n", LinkState.CONNECTED, dropped={"stale": 2}
                )
            ]

    core = answering()
    core.core_stats = CoreStats(
        running=1,
        waiting=2,
        kv_blocks_total=9,
        kv_blocks_free=8,
        speculation_state="on",
        step_cost_ms={1: 2.5},
    )
    async with serving(core, socket_dir, proposers=Proposers()) as client:
        info = await client.stub.GetInfo(pb.GetInfoRequest())
    assert (info.model, info.engine, info.dtype) == ("toy", "fake", "float32")
    assert (info.max_model_len, info.vocabulary_size) == (512, 400)
    assert len(info.vocabulary_fingerprint) >= 16 and info.instance_id and info.version
    assert info.num_speculative_tokens == 4
    assert info.rejection_rule == types_pb2.REJECTION_RULE_COUPLED
    assert info.proposers[0].state == "connected" and info.proposers[0].dropped["stale"] == 2
    assert (info.running_requests, info.waiting_requests) == (1, 2)
    assert (info.kv_blocks_total, info.kv_blocks_free) == (9, 8)
    assert info.speculation_state == "on" and info.step_cost_ms[1] == 2.5


async def test_tokenize_and_detokenize_agree(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        tokens = await client.stub.Tokenize(
            pb.TokenizeRequest(text="the cat 🙂", return_token_strings=True)
        )
        back = await client.stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.Detokenize(pb.DetokenizeRequest(token_ids=[3, 400]))
    assert list(tokens.token_ids) == encode("the cat 🙂")
    assert len(tokens.token_strings) == len(tokens.token_ids)
    assert tokens.max_model_len == 512
    assert back.text == "the cat 🙂"
    assert caught.value.details() == "token_ids[1] 400 is not a token id: ids are from 0 to 399"


async def test_reflection_lists_the_services(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        names = {s.name async for m in call for s in m.list_services_response.service}
    assert {"speculation.v1.VerifierService", "grpc.health.v1.Health"} <= names
