"""Verifiers whose engine is a real child, and what happens when either side ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from speculation.v1 import types_pb2, verifier_pb2_grpc
from speculation.v1 import verifier_pb2 as pb

from outrider.errors import OperationError
from tests.verifier_service.engine_process.toy_core import BUILD, ENDLESS, LOADING, SLOW, build
from tests.verifier_service.serving import Reply, request, settings_for
from tests.verifier_service.test_target_facts import CONFIG
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service import server
from verifier_service.backend import Backend, load_backend
from verifier_service.engine_process.process import EngineProcess
from verifier_service.running_server import RunningServer, bind
from verifier_service.settings import VerifierSettings

# A child imports torch, on machines that have other things to do.
WAIT_S = 120.0


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.logs.configure", lambda level: None)
    monkeypatch.setattr("verifier_service.engine_process.remote_core.BUILD_CORE", BUILD)
    monkeypatch.setattr("verifier_service.build.build_core", build)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = byte_level_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    changes = {"vocab_size": len(tokenizer), "max_position_embeddings": 256, "eos_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return tmp_path


def settings_of(folder: Path, address: str, **changes: Any) -> VerifierSettings:
    return settings_for(address, model=str(folder), log_stats_interval_s=0.0, **changes)


@dataclass
class Served:
    """A running verifier, its backend and a stub of it."""

    running: RunningServer
    backend: Backend
    stub: Any
    channel: grpc.aio.Channel

    async def generate(self, message: pb.GenerateRequest) -> Reply:
        reply = Reply()
        async for response in self.stub.Generate(message, timeout=WAIT_S):
            reply.add(response)
        return reply


@asynccontextmanager
async def served(
    settings: VerifierSettings, process: EngineProcess | None = None
) -> AsyncIterator[Served]:
    running = await bind(settings, "instance")
    backend = await asyncio.to_thread(lambda: load_backend(settings, "instance", process=process))
    await running.attach(backend)
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            yield Served(running, backend, stub, channel)
        finally:
            await running.stop(0)


def requests() -> list[pb.GenerateRequest]:
    """Eight of all kinds: drafts, log-probabilities, structures, a prediction, penalties."""
    common: dict[str, Any] = {"temperature": 0.9, "max_tokens": 30}
    made = [request("the cat", seed=seed, **common) for seed in range(3)]
    made.append(request("a dog", seed=4, logprobs=3, prompt_logprobs=1, **common))
    structured = request("the", seed=5, **common)
    structured.structured.regex = r"(cat|dog) \d{2,4}"
    choice = request("the", seed=6, **common)
    choice.structured.choice.strings.extend(["the cat sat", "STOP"])
    predicted = request("a", seed=7, **common)
    predicted.prediction.text = "the cat sat on the mat. a dog and a cat"
    penalised = request("a dog", seed=8, presence_penalty=0.5, min_p=0.01, **common)
    return [*made, structured, choice, predicted, penalised]


def told(reply: Reply) -> tuple[Any, ...]:
    assert reply.finished is not None
    ids = [token for delta in reply.deltas for token in delta.token_ids]
    logprobs = [entry for delta in reply.deltas for entry in delta.logprobs]
    return reply.text, ids, reply.finished.reason, logprobs


async def test_a_child_answers_as_a_thread_does_hears_no_signal_and_dies_loudly(
    folder: Path, socket_dir: Path
) -> None:
    process = EngineProcess.start()
    settings = settings_of(folder, f"unix:{socket_dir}/t.sock", served_model_name=SLOW)
    async with served(settings) as thread:
        expected = [await thread.generate(message) for message in requests()]
    settings = settings_of(folder, f"unix:{socket_dir}/c.sock", served_model_name=SLOW)
    async with served(settings, process) as child:
        await _answers_equal(child, expected)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(process.pid, number)
        await _answers_equal(child, expected)
        info = await child.stub.GetInfo(pb.GetInfoRequest())
        assert info.kv_blocks_total == 512
        assert sum(info.step_times.verify.counts) > 0
        await _streams_end_with_their_engine(child, process)
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


async def _answers_equal(child: Served, expected: list[Reply]) -> None:
    replies = await asyncio.gather(*(child.generate(message) for message in requests()))
    assert [told(reply) for reply in replies] == [told(reply) for reply in expected]


async def _streams_end_with_their_engine(child: Served, process: EngineProcess) -> None:
    calls = [
        child.stub.Generate(
            request("the", max_tokens=240, seed=seed, ignore_eos=True), timeout=WAIT_S
        )
        for seed in range(8)
    ]
    begun = await asyncio.gather(*(call.read() for call in calls))
    os.kill(process.pid, signal.SIGKILL)
    assert {message.WhichOneof("message") for message in begun} == {"started"}
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "the engine's process was killed by SIGKILL" in (caught.value.details() or "")
    assert "SIGKILL" in await asyncio.wait_for(child.running.wait_dead(), WAIT_S)
    health = health_pb2_grpc.HealthStub(child.channel)
    reply = await health.Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError, match="the engine died") as caught:
        await child.generate(request())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def pid_in(log: pytest.LogCaptureFixture) -> int:
    """The child's id, once the server has started it."""

    def lines() -> list[str]:
        return [m for m in log.messages if m.startswith("engine process started pid=")]

    wait_until(lambda: bool(lines()))
    (line,) = lines()
    return int(line.rpartition("=")[2])


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def run_with(settings: VerifierSettings, peer: Callable[[grpc.Channel], None]) -> bool:
    """What `server.run` in this thread returns; a peer is in another once it listens."""
    problems: list[BaseException] = []

    def body() -> None:
        try:
            with grpc.insecure_channel(settings.listen) as channel:
                grpc.channel_ready_future(channel).result(WAIT_S)
                peer(channel)
        except BaseException as error:
            problems.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        loading = server.run(settings)
    finally:
        thread.join(WAIT_S)
    assert problems == []
    return loading


def serving(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for reply in stub.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S):
        if reply.status == health_pb2.HealthCheckResponse.SERVING:
            return


def test_a_signal_to_both_lets_requests_end_and_leaves_no_process(
    folder: Path, socket_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = settings_of(
        folder,
        socket_address,
        served_model_name=SLOW,
        engine_process=True,
        drain_seconds=WAIT_S,
    )
    reasons: list[int] = []

    def peer(channel: grpc.Channel) -> None:
        serving(channel)
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Generate(request("the", max_tokens=60, ignore_eos=True), timeout=WAIT_S)
        next(call)
        for pid in (pid_in(caplog), os.getpid()):
            os.kill(pid, signal.SIGTERM)
        reasons.extend(m.finished.reason for m in call if m.HasField("finished"))

    assert not run_with(settings, peer)
    assert reasons == [types_pb2.FINISH_REASON_LENGTH]
    assert gone(pid_in(caplog))
    assert caplog.messages[-1] == "verifier stopped"


def test_a_signal_while_loading_ends_both_at_once(
    folder: Path, socket_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = settings_of(folder, socket_address, served_model_name=ENDLESS, engine_process=True)

    def peer(channel: grpc.Channel) -> None:
        pid_in(caplog)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run_with(settings, peer)
    assert "verifier stopped while loading" in caplog.messages
    assert gone(pid_in(caplog))


def test_a_child_killed_while_it_loads_ends_the_verifier_with_its_reason(
    folder: Path, socket_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = settings_of(folder, socket_address, engine_process=True)
    with pytest.raises(OperationError, match="was killed by SIGKILL while it loaded"):
        run_with(settings, lambda channel: os.kill(pid_in(caplog), signal.SIGKILL))
    assert gone(pid_in(caplog))


PARENT = """
import sys
from tests.verifier_service.engine_process.test_building import TARGET
from tests.verifier_service.engine_process.toy_core import BUILD, ENDLESS
from tests.verifier_service.serving import settings_for
from verifier_service.engine_process.process import EngineProcess
from verifier_service.engine_process.remote_core import start_core
process = EngineProcess.start()
print(process.pid, flush=True)
settings = settings_for("unix:unused", model=sys.argv[1], served_model_name=ENDLESS)
start_core(process, settings, TARGET, BUILD)
"""


def test_a_child_ends_with_its_parent_even_while_it_loads(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            wait_until((tmp_path / LOADING).exists)
            parent.kill()
            parent.wait(WAIT_S)
            wait_until(lambda: gone(child))
        finally:
            parent.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
