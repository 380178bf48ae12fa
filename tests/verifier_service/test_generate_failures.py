"""Generate: clients that leave, deadlines, engines that die, outputs that cannot be true."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from speculation.v1 import verifier_pb2 as pb

from tests.fakes import FakeCore, rounds
from tests.verifier_service.serving import (
    ANSWER,
    answering,
    encode,
    health_of,
    refusal,
    request,
    serving,
    until,
)
from verifier_service.messages import Output, Request


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
