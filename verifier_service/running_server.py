"""A bound gRPC server: its options, services and the order of starting and stopping.

Knows no signals and loads nothing; the RPCs are servicer.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from speculation.v1 import verifier_pb2_grpc

from outrider import listener
from verifier_service.backend import Backend
from verifier_service.lifecycle import SERVICE_NAME, Lifecycle
from verifier_service.servicer import VerifierServicer
from verifier_service.settings import VerifierSettings
from verifier_service.spec_decoding_log import log_spec_decoding
from verifier_service.tracing_start import VerifierTracing, start_tracing

MAX_RECEIVED_BYTES = 32 * 1024 * 1024
# Calls beside the requests that run and wait: health, GetInfo, Tokenize.
SPARE_CALLS = 1024
# How often an idle verifier looks whether its engine still lives.
WATCH_INTERVAL_S = 0.5
# What a last message needs to reach its client once the drain is over.
_LAST_WORDS_S = 1.0

_OPTIONS: tuple[tuple[str, int], ...] = (
    *listener.OPTIONS,
    ("grpc.max_receive_message_length", MAX_RECEIVED_BYTES),
    ("grpc.max_send_message_length", MAX_RECEIVED_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class RunningServer:
    """A bound server; `address` is where it is reached."""

    def __init__(
        self,
        address: str,
        server: grpc.aio.Server,
        lifecycle: Lifecycle,
        servicer: VerifierServicer,
        drain_seconds: float,
        log_stats_interval_s: float = 0.0,
        tracing: VerifierTracing | None = None,
    ) -> None:
        self.address = address
        self._tracing = tracing
        self._server = server
        self._lifecycle = lifecycle
        self._servicer = servicer
        self._drain_seconds = drain_seconds
        self._hurry = asyncio.Event()
        self._stopped = False
        self._backend: Backend | None = None
        self._watching: asyncio.Task[str] | None = None
        self._log_stats_interval_s = log_stats_interval_s
        self._logging: asyncio.Task[None] | None = None

    async def attach(self, backend: Backend) -> None:
        """Serve with a loaded backend from now on."""
        self._backend = backend
        self._servicer.attach(backend)
        if self._tracing is not None:
            self._tracing.observe(self._servicer.ledger, backend)
        self._watching = asyncio.create_task(self._watch(backend))
        if self._log_stats_interval_s > 0:
            acceptance = self._servicer.ledger.acceptance
            self._logging = asyncio.create_task(
                log_spec_decoding(acceptance, self._log_stats_interval_s)
            )
        await self._lifecycle.serve()

    async def stop(self, grace: float | None = None) -> None:
        """Take no new requests, let running ones end within `grace` seconds, abort the rest.

        None takes the settings' drain time. Closes the backend. Idempotent.
        """
        if self._stopped:
            return
        await self._lifecycle.drain()
        seconds = self._drain_seconds if grace is None else grace
        await first_of(self._servicer.idle.wait(), self._hurry.wait(), timeout=seconds)
        self._servicer.shut_down_answers()
        await self._server.stop(_LAST_WORDS_S)
        for task in (self._watching, self._logging):
            if task is not None:
                task.cancel()
        if self._backend is not None:
            await asyncio.to_thread(self._backend.close)
        self._servicer.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.shutdown)
        # Only once: by the next call the path may be another process's.
        self._stopped = True
        listener.remove_socket(self.address)

    def hurry(self) -> None:
        """End a running `stop` without waiting for its grace."""
        self._hurry.set()

    async def wait_dead(self) -> str:
        """Why the engine died, once it has."""
        if self._watching is None:
            raise RuntimeError("no backend is attached")
        return await asyncio.shield(self._watching)

    async def _watch(self, backend: Backend) -> str:
        while not backend.core.failure:
            await asyncio.sleep(WATCH_INTERVAL_S)
        await self._lifecycle.die(backend.core.failure)
        self._servicer.fail_answers(backend.core.failure)
        return backend.core.failure


async def bind(settings: VerifierSettings, instance_id: str) -> RunningServer:
    """Listen and answer health checks; requests are UNAVAILABLE until `attach`.

    Raises InputError where the address cannot be listened at.
    """
    lifecycle = Lifecycle()
    await lifecycle.start()
    servicer = VerifierServicer(settings, lifecycle, instance_id)
    server = grpc.aio.server(
        options=_OPTIONS,
        maximum_concurrent_rpcs=settings.max_waiting_requests + settings.max_num_seqs + SPARE_CALLS,
    )
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(lifecycle.health, server)
    health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    if not settings.credentials.admits_strangers(settings.listen):
        reflection.enable_server_reflection(
            (SERVICE_NAME, health_name, reflection.SERVICE_NAME), server
        )
    address = listener.bind(server, settings.listen, settings.credentials)
    tracing = start_tracing(settings, instance_id)
    if tracing is not None:
        servicer.trace_with(tracing.requests)
    await server.start()
    return RunningServer(
        address,
        server,
        lifecycle,
        servicer,
        settings.drain_seconds,
        settings.log_stats_interval_s,
        tracing,
    )


async def first_of(*waits: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    """Return when one of them has ended or the time is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
