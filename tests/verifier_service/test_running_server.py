from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from speculation.v1 import types_pb2, verifier_pb2_grpc
from speculation.v1 import verifier_pb2 as pb

from outrider.errors import InputError, OperationError
from tests.fakes import FakeCore, rounds
from tests.verifier_service.serving import WAIT_S, encode, request, serving, settings_for, until
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service import server
from verifier_service.backend import Backend, NoProposers
from verifier_service.messages import NoDrafts
from verifier_service.running_server import bind
from verifier_service.settings import VerifierSettings
from verifier_service.target_facts import SamplingDefaults
from verifier_service.text import Text

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(autouse=True)
def logging_as_the_tests_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.logs.configure", lambda level: None)


def held_core() -> FakeCore:
    return FakeCore(lambda _: rounds(encode("a dog and a cat"), per_round=1), hold=True)


def backend_of(core: FakeCore) -> Backend:
    return Backend(
        core=core,
        text=Text(byte_level_tokenizer()),
        proposers=NoProposers(),
        defaults=SamplingDefaults(),
        source=NoDrafts(),
    )


async def test_a_loading_verifier_says_so_and_serves_once_it_is_loaded(socket_dir: Path) -> None:
    running = await bind(settings_for(f"unix:{socket_dir}/v.sock"), "instance")
    async with grpc.aio.insecure_channel(running.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
        for call in (
            stub.GetInfo(pb.GetInfoRequest()),
            stub.Tokenize(pb.TokenizeRequest(text="a")),
            stub.Detokenize(pb.DetokenizeRequest(token_ids=[1])),
            stub.Generate(request()).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "the model is loading" in (caught.value.details() or "")
        core = held_core()
        await running.attach(backend_of(core))
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
        assert (await stub.GetInfo(pb.GetInfoRequest())).instance_id == "instance"
    await running.stop(0)


async def test_a_drain_lets_running_requests_end_and_takes_no_new_ones(socket_dir: Path) -> None:
    core = held_core()
    async with serving(core, socket_dir) as client:
        running = asyncio.create_task(client.generate(request()))
        await until(lambda: len(core.submitted) == 1)
        stopping = asyncio.create_task(client.server.stop(WAIT_S))
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(request())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in (caught.value.details() or "")
        health = health_pb2_grpc.HealthStub(client.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
        core.step(100)
        reply = await running
        await stopping
    assert reply.text == "a dog and a cat"
    assert reply.finished is not None
    assert reply.finished.reason == types_pb2.FINISH_REASON_LENGTH
    assert core.stopped.is_set()
    assert not (socket_dir / "v.sock").exists()


@pytest.mark.parametrize("hurried", [False, True])
async def test_what_outlasts_the_grace_is_finished_as_aborted(
    socket_dir: Path, hurried: bool
) -> None:
    core = held_core()
    async with serving(core, socket_dir) as client:
        running = asyncio.create_task(client.generate(request()))
        await until(lambda: len(core.submitted) == 1)
        if hurried:
            stopping = asyncio.create_task(client.server.stop(10 * WAIT_S))
            client.server.hurry()
            await stopping
        else:
            await client.server.stop(0)
        reply = await running
    assert reply.finished is not None
    assert reply.finished.reason == types_pb2.FINISH_REASON_ABORT
    assert core.aborted == [core.submitted[0].request_id]


async def test_a_stopped_servers_path_is_not_taken_from_its_successor(socket_dir: Path) -> None:
    async with serving(held_core(), socket_dir) as first:
        await first.server.stop(0)
        async with serving(held_core(), socket_dir) as second:
            await first.server.stop(0)
            await second.stub.GetInfo(pb.GetInfoRequest())


class Process:
    """`server.run` in this thread, and a peer that reacts once it serves, in another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, address: str, core: FakeCore) -> None:
        def load(settings: VerifierSettings, instance_id: str) -> Backend:
            return backend_of(core)

        monkeypatch.setattr(server, "load_backend", load)
        self._address = address

    def run(self, peer: Any) -> None:
        problems: list[BaseException] = []

        def body() -> None:
            try:
                with grpc.insecure_channel(self._address) as channel:
                    self._wait_serving(channel)
                    peer(channel)
            except BaseException as error:
                problems.append(error)
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=body)
        thread.start()
        try:
            assert not server.run(settings_for(self._address, drain_seconds=WAIT_S))
        finally:
            thread.join(WAIT_S)
            assert problems == []

    def _wait_serving(self, channel: grpc.Channel) -> None:
        grpc.channel_ready_future(channel).result(WAIT_S)
        stub = health_pb2_grpc.HealthStub(channel)
        for reply in stub.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S):
            if reply.status == SERVING:
                return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_after_its_requests(
    monkeypatch: pytest.MonkeyPatch, socket_address: str, number: signal.Signals
) -> None:
    core = held_core()
    before = signal.getsignal(number)
    texts: list[str] = []

    def peer(channel: grpc.Channel) -> None:
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        core.step(1)
        call = stub.Generate(request(), timeout=WAIT_S)
        next(call)
        os.kill(os.getpid(), number)
        core.step(100)
        texts.append("".join(message.delta.text for message in call))

    Process(monkeypatch, socket_address, core).run(peer)
    assert texts == ["a dog and a cat"]
    assert core.stopped.is_set()
    assert signal.getsignal(number) is before


def test_a_second_signal_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, socket_address: str
) -> None:
    core = held_core()
    reasons: list[int] = []

    def peer(channel: grpc.Channel) -> None:
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        health = health_pb2_grpc.HealthStub(channel)
        core.step(1)
        call = stub.Generate(request(), timeout=WAIT_S)
        next(call)
        os.kill(os.getpid(), signal.SIGTERM)
        while health.Check(health_pb2.HealthCheckRequest()).status == SERVING:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        reasons.extend(m.finished.reason for m in call if m.HasField("finished"))

    Process(monkeypatch, socket_address, core).run(peer)
    assert reasons == [types_pb2.FINISH_REASON_ABORT]


def test_a_dead_engine_ends_the_process_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, socket_address: str
) -> None:
    core = held_core()
    process = Process(monkeypatch, socket_address, core)
    with pytest.raises(OperationError, match="engine died: device lost"):
        process.run(lambda channel: core.die("device lost"))
    assert core.stopped.is_set()


def test_startup_is_told_in_single_lines(
    monkeypatch: pytest.MonkeyPatch, socket_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    process = Process(monkeypatch, socket_address, held_core())
    process.run(lambda channel: os.kill(os.getpid(), signal.SIGTERM))
    lines = [r.getMessage() for r in caplog.records if r.name == "verifier_service.server"]
    assert lines[0].startswith("verifier loading model=unused address=unix:")
    assert lines[1].startswith("verifier ready model=toy address=unix:")
    assert lines[-1] == "verifier stopped"
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("problem", [InputError("model: /x is not a folder"), MemoryError()])
def test_a_model_that_cannot_be_loaded_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, socket_dir: Path, problem: Exception
) -> None:
    def load(settings: VerifierSettings, instance_id: str) -> Backend:
        raise problem

    monkeypatch.setattr(server, "load_backend", load)
    with pytest.raises(type(problem)) as caught:
        server.run(settings_for(f"unix:{socket_dir}/v.sock"))
    assert caught.value is problem
    assert not (socket_dir / "v.sock").exists()


def test_a_signal_while_loading_ends_the_process_at_once(
    monkeypatch: pytest.MonkeyPatch, socket_address: str
) -> None:
    go_on = threading.Event()
    core = held_core()

    def load(settings: VerifierSettings, instance_id: str) -> Backend:
        os.kill(os.getpid(), signal.SIGTERM)
        assert go_on.wait(WAIT_S)
        return backend_of(core)

    monkeypatch.setattr(server, "load_backend", load)
    assert server.run(settings_for(socket_address))
    assert not core.stopped.is_set()
    go_on.set()
    # Nobody waits for the backend any more: it is closed, not leaked.
    assert core.stopped.wait(WAIT_S)
