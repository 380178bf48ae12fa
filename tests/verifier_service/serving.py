"""A verifier's server over a fake core, and a client of it, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from speculation.v1 import verifier_pb2 as pb
from speculation.v1 import verifier_pb2_grpc

from tests.fakes import FakeCore, rounds
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.backend import ProposerStates
from verifier_service.running_server import RunningServer
from verifier_service.server import start
from verifier_service.settings import VerifierSettings
from verifier_service.target_facts import SamplingDefaults
from verifier_service.text import Text

WAIT_S = 20.0
ANSWER = "über a dog 🙂 and STOP the rest"


def settings_for(listen: str, **changes: Any) -> VerifierSettings:
    base = VerifierSettings(
        model="unused", listen=listen, served_model_name="toy", num_speculative_tokens=4
    )
    return replace(base, **changes)


@dataclass
class Client:
    """A stub, the server behind it and its core."""

    stub: Any
    channel: grpc.aio.Channel
    server: RunningServer
    core: FakeCore

    async def generate(self, request: pb.GenerateRequest) -> Reply:
        reply = Reply()
        async for message in self.stub.Generate(request, timeout=WAIT_S):
            reply.add(message)
        return reply


@dataclass
class Reply:
    """All messages of one stream."""

    started: pb.Started | None = None
    deltas: list[pb.Delta] = field(default_factory=list)
    finished: pb.Finished | None = None

    def add(self, message: pb.GenerateResponse) -> None:
        assert self.finished is None, "nothing follows finished"
        kind = message.WhichOneof("message")
        if kind == "started":
            assert self.started is None and not self.deltas
            self.started = message.started
        elif kind == "delta":
            assert self.started is not None
            self.deltas.append(message.delta)
        else:
            self.finished = message.finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [i for delta in self.deltas for i in delta.token_ids]

    @property
    def rounds(self) -> list[pb.Round]:
        return [r for delta in self.deltas for r in delta.rounds]


@asynccontextmanager
async def serving(
    core: FakeCore,
    folder: Path,
    *,
    proposers: ProposerStates | None = None,
    defaults: SamplingDefaults | None = None,
    **changes: Any,
) -> AsyncIterator[Client]:
    """A running server at a Unix socket in `folder`, stopped at the end."""
    server = await start(
        settings_for(f"unix:{folder}/v.sock", **changes),
        core=core,
        text=Text(byte_level_tokenizer()),
        proposers=proposers,
        defaults=defaults,
    )
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            yield Client(stub, channel, server, core)
        finally:
            await server.stop(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other threads and peers will do; fails after WAIT_S seconds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


def encode(text: str) -> list[int]:
    return list(byte_level_tokenizer().encode(text))


def request(prompt: str = "the cat", **sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=prompt, sampling=pb.SamplingParams(**sampling))


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
