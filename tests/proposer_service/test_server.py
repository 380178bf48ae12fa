"""The server and its process: capabilities, health, reflection, signals, shutdown."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from speculation.v1 import proposer_pb2

from proposer_service.proposers.ngram import NgramProposer
from proposer_service.server import (
    SERVICE_NAME,
    RunningServer,
    make_proposer,
    start,
)
from proposer_service.settings import ProposerSettings
from tests.proposer_service.serving import TEXT, settings_at
from tests.proposer_service.verifier import (
    WAIT_S,
    connected,
    opening,
    propose,
    step,
)


async def test_capabilities_say_what_it_is(server: RunningServer) -> None:
    async with connected(server.address) as stub:
        response = await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest())
    capabilities = response.capabilities
    assert (capabilities.name, capabilities.method) == ("ngram", "ngram")
    assert (capabilities.max_draft_tokens, capabilities.max_sequences) == (8, 8)
    assert capabilities.vocabulary_size == 0
    assert not capabilities.lookahead
    assert capabilities.instance_id


async def test_health_and_reflection(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE_NAME):
            response = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        answer = await call.read()
        assert SERVICE_NAME in [entry.name for entry in answer.list_services_response.service]


async def test_stopping_ends_idle_streams_with_a_reason(socket_dir: Path) -> None:
    running = await start(settings_at(socket_dir, drain_seconds=60))
    async with propose(running.address) as stream:
        await stream.greet()
        await stream.ask(step(1, opening(1, TEXT, k=3)))
        async with asyncio.timeout(WAIT_S):
            await running.stop()
            await running.stop()
        code, detail = await stream.status()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in detail
    assert not (socket_dir / "p.sock").exists()


@pytest.mark.parametrize("method", ["ngram", "suffix"])
async def test_both_methods_serve(socket_dir: Path, method: str) -> None:
    running = await start(settings_at(socket_dir, method=method, name="mine"))
    try:
        async with propose(running.address) as stream:
            assert (await stream.greet()).name == "mine"
            (block,) = (await stream.ask(step(1, opening(1, TEXT, k=2)))).blocks
            assert list(block.token_ids) == [3, 4]
    finally:
        await running.stop()


async def read_line(process: asyncio.subprocess.Process, words: str) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(WAIT_S):
        while words not in (line := (await process.stderr.readline()).decode()):
            assert line, "the process ended"


async def start_process(address: str) -> asyncio.subprocess.Process:
    code = (
        "from proposer_service.server import run\n"
        "from proposer_service.settings import ProposerSettings\n"
        f"run(ProposerSettings(listen={address!r}, method='suffix', drain_seconds=60))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=subprocess.PIPE
    )
    await read_line(process, "proposer ready")
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_process(socket_dir: Path, number: signal.Signals) -> None:
    address = f"unix:{socket_dir}/p.sock"
    process = await start_process(address)
    async with propose(address) as stream:
        await stream.greet()
        process.send_signal(number)
        code, _ = await stream.status()
        assert code is grpc.StatusCode.UNAVAILABLE
    assert await asyncio.wait_for(process.wait(), WAIT_S) == 0
    assert not (socket_dir / "p.sock").exists()


async def test_a_killed_process_leaves_a_socket_that_the_next_one_replaces(
    socket_dir: Path,
) -> None:
    address = f"unix:{socket_dir}/p.sock"
    process = await start_process(address)
    process.kill()
    await asyncio.wait_for(process.wait(), WAIT_S)
    assert (socket_dir / "p.sock").exists()
    running = await start(settings_at(socket_dir, listen=address))
    try:
        async with propose(running.address) as stream:
            await stream.greet()
    finally:
        await running.stop()


def test_the_service_imports_no_torch() -> None:
    code = (
        "import sys, proposer_service.server, proposer_service.adversaries\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_choose_the_method() -> None:
    settings = ProposerSettings(listen="unix:/x", method="ngram")
    assert type(make_proposer(settings)) is NgramProposer
