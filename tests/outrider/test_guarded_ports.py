"""What the services' own ports tell strangers, and how many calls at once they take."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from speculation.v1 import proposer_pb2, proposer_pb2_grpc

from outrider.credentials import (
    PLAIN,
    Credentials,
    load_credentials,
    open_aio_channel,
    open_channel,
)
from proposer_service import running_server as proposer_server
from proposer_service.server import start as start_proposer
from proposer_service.settings import ProposerSettings
from tests.certificates import Authority
from tests.proposer_service.verifier import hello
from tests.verifier_service.serving import settings_for
from verifier_service import running_server

OPEN = Credentials(insecure=True)


async def starts(service: str, listen: str, credentials: Credentials) -> Any:
    """A running server of that kind, and its address."""
    if service == "proposer":
        settings = ProposerSettings(listen=listen, method="ngram", credentials=credentials)
        return await start_proposer(settings)
    return await running_server.bind(settings_for(listen, credentials=credentials), "instance")


def reflects(address: str, credentials: Credentials) -> bool:
    """Whether the server at `address` lists its services.

    By a blocking call: asyncio's says INTERNAL where the refusal comes before the question is sent.
    """
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    with open_channel(address, credentials) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        try:
            for answer in stub.ServerReflectionInfo(iter([question]), timeout=10):
                return bool(answer.list_services_response.service)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    return False


@pytest.mark.parametrize("service", ["proposer", "verifier"])
async def test_only_those_known_are_told_of_methods(
    service: str, socket_dir: Path, free_port: int, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    mutual = load_credentials(pair.cert, pair.key, authority.ca, True)
    alone = load_credentials(pair.cert, pair.key)
    trusting, everywhere = authority.client(), f"0.0.0.0:{free_port}"
    for listen, credentials, shown, told in (
        (f"unix:{socket_dir}/a.sock", PLAIN, PLAIN, True),
        (f"127.0.0.1:{free_port}", PLAIN, PLAIN, True),
        (everywhere, OPEN, PLAIN, False),
        (everywhere, alone, trusting, False),
        (everywhere, mutual, authority.client(shows=pair), True),
    ):
        running = await starts(service, listen, credentials)
        address = running.address.replace("0.0.0.0", "127.0.0.1")
        try:
            found = await asyncio.to_thread(reflects, address, shown)
            assert found is told, (listen, credentials)
        finally:
            await running.stop()


async def test_a_proposer_refuses_calls_beyond_its_most(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposer_server, "MAX_CONCURRENT_CALLS", 2)
    running = await starts("proposer", f"unix:{socket_dir}/p.sock", PLAIN)
    try:
        async with open_aio_channel(running.address) as channel:
            stub: Any = proposer_pb2_grpc.ProposerServiceStub(channel)  # type: ignore[no-untyped-call]
            held = []
            for number in range(2):
                call = stub.Propose()
                said = hello(verifier_instance_id=f"v{number}")
                await call.write(proposer_pb2.ProposeRequest(hello=said))
                assert (await call.read()).HasField("welcome")
                held.append(call)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            held.pop().cancel()
            async with asyncio.timeout(10):
                while not await _answers(stub):
                    await asyncio.sleep(0.01)
    finally:
        await running.stop()


async def _answers(stub: Any) -> bool:
    try:
        await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest(), timeout=10)
    except grpc.aio.AioRpcError:
        return False
    return True


async def test_a_stalled_handshake_is_let_go(
    free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "grpc.server_handshake_timeout_ms"
    quick = [(k, 200 if k == name else value) for k, value in proposer_server._OPTIONS]
    monkeypatch.setattr(proposer_server, "_OPTIONS", quick)
    authority = Authority(tmp_path)
    running = await starts("proposer", f"127.0.0.1:{free_port}", authority.server())
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
    finally:
        await running.stop()
