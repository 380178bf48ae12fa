"""A bound proposer: its options, services and how it ends; knows no method and no signals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from speculation.v1 import proposer_pb2

from outrider import listener
from outrider.credentials import PLAIN, Credentials

if TYPE_CHECKING:
    from outrider.tracing import Telemetry

SERVICE_NAME: str = proposer_pb2.DESCRIPTOR.services_by_name["ProposerService"].full_name
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# Streams of verifiers and questions of their operators; more are RESOURCE_EXHAUSTED.
MAX_CONCURRENT_CALLS = 1024

_OPTIONS: tuple[tuple[str, int], ...] = (
    *listener.OPTIONS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A verifier whose machine died must not hold its sequences for ever.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class Servicer(Protocol):
    """RPCs that can be told that there will be no more."""

    def add_to(self, server: grpc.aio.Server) -> None: ...

    def drain(self) -> None: ...


class RunningServer:
    """A server that answers; `address` is where clients reach it."""

    def __init__(
        self,
        address: str,
        server: grpc.aio.Server,
        servicer: Servicer,
        health_service: health.aio.HealthServicer,  # type: ignore[name-defined]
        drain_seconds: float,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.address = address
        self._telemetry = telemetry
        self._server = server
        self._servicer = servicer
        self._health = health_service
        self._drain_seconds = drain_seconds
        self._stopping: asyncio.Task[None] | None = None
        self._dead = asyncio.Event()
        # Why this proposer can draft no more; empty while it can.
        self.failure = ""

    async def show(self, *, serving: bool) -> None:
        """What the health service says of this proposer."""
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICE_NAME):
            await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    def die(self, reason: str) -> None:
        """There will be no drafts any more, whatever is asked."""
        self.failure = reason
        self._dead.set()

    async def wait_dead(self) -> None:
        """Returns once `die` was called."""
        await self._dead.wait()

    async def stop(self) -> None:
        """Send the answers in progress, end all streams, release the address. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        self._servicer.drain()
        await self._server.stop(self._drain_seconds)
        listener.remove_socket(self.address)
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.shutdown)


async def serve_servicer(
    servicer: Servicer,
    listen: str,
    drain_seconds: float,
    credentials: Credentials = PLAIN,
    telemetry: Telemetry | None = None,
    *,
    serving: bool = True,
) -> RunningServer:
    """Serve RPCs that are built already, beside health and, for those known, reflection.

    `telemetry` is shut down with the server. `serving` is what the health service says at first.
    """
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS)
    servicer.add_to(server)
    health_service = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    if not credentials.admits_strangers(listen):
        reflection.enable_server_reflection(
            (SERVICE_NAME, health_name, reflection.SERVICE_NAME), server
        )
    address = listener.bind(server, listen, credentials)
    await server.start()
    running = RunningServer(address, server, servicer, health_service, drain_seconds, telemetry)
    await running.show(serving=serving)
    return running
