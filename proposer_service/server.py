"""The proposer's process: from settings to a server that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import uuid
from typing import TYPE_CHECKING, Protocol

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from speculation.v1 import proposer_pb2

from outrider import garbage, listener, logs
from outrider.credentials import PLAIN, Credentials
from outrider.errors import InputError
from outrider.parent import end_now
from outrider.starting_telemetry import start_telemetry
from outrider.telemetry import PROPOSER_SERVICE
from proposer_service.draft_model_settings import DraftModelSettings
from proposer_service.handshake import describe
from proposer_service.loading_servicer import LoadingServicer
from proposer_service.loading_thread import on_loading_thread
from proposer_service.proposers.base import Proposer
from proposer_service.proposers.long_ngram import ngram_proposer
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.servicer import ProposerServicer
from proposer_service.settings import ProposerSettings

if TYPE_CHECKING:
    from outrider.tracing import Telemetry
    from proposer_service.draft_model.loading import LoadedDraftModel
    from proposer_service.tracing import SequenceTracer

logger = logging.getLogger(__name__)

SERVICE_NAME: str = proposer_pb2.DESCRIPTOR.services_by_name["ProposerService"].full_name
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# Streams of verifiers and questions of their operators; more are RESOURCE_EXHAUSTED.
MAX_CONCURRENT_CALLS = 1024

# How long look-ahead may keep gRPC's own thread from saying that a step has arrived; the
# interpreter's default is 5 ms.
_SWITCH_SECONDS = 0.0002

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

    async def show(self, *, serving: bool) -> None:
        """What the health service says of this proposer."""
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICE_NAME):
            await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

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


def run(settings: ProposerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises InputError for an address in use."""
    logs.configure(settings.log_level)
    if asyncio.run(_serve(settings)):
        # A thread goes on with loading, which cannot be interrupted.
        end_now()


async def start(settings: ProposerSettings) -> RunningServer:
    """Serve the method that the settings name. The caller stops the server.

    Returns once it serves; until a draft model is loaded, health says NOT_SERVING. Raises
    InputError where the address or the model cannot be used.
    """
    if settings.draft_model is not None:
        return await _start_draft_model(settings, settings.draft_model)
    capabilities = _capabilities(settings)
    telemetry = start_telemetry(
        settings.trace,
        PROPOSER_SERVICE,
        capabilities.instance_id,
        credentials=settings.credentials,
    )
    servicer = ProposerServicer(
        make_proposer(settings), capabilities, _tracer(telemetry, capabilities)
    )
    try:
        running = await serve_servicer(
            servicer, settings.listen, settings.drain_seconds, settings.credentials, telemetry
        )
    except InputError:
        if telemetry is not None:
            telemetry.shutdown(0)
        raise
    _log_ready(capabilities, running)
    return running


async def _start_draft_model(
    settings: ProposerSettings, draft_model: DraftModelSettings
) -> RunningServer:
    instance_id = uuid.uuid4().hex
    telemetry = start_telemetry(
        settings.trace, PROPOSER_SERVICE, instance_id, credentials=settings.credentials
    )
    loading = LoadingServicer()
    try:
        running = await serve_servicer(
            loading,
            settings.listen,
            settings.drain_seconds,
            settings.credentials,
            telemetry,
            serving=False,
        )
    except InputError:
        if telemetry is not None:
            telemetry.shutdown(0)
        raise
    try:
        logger.info("proposer loading model=%s address=%s", draft_model.model, running.address)

        def load() -> LoadedDraftModel:
            # Only a process that runs a model pays for importing what runs it.
            from proposer_service.draft_model.loading import load_draft_model

            return load_draft_model(draft_model, settings.max_sequences)

        loaded = await on_loading_thread(load)
        capabilities = _capabilities(settings, instance_id, loaded)
        loading.attach(
            ProposerServicer(loaded.proposer, capabilities, _tracer(telemetry, capabilities))
        )
        await running.show(serving=True)
    except BaseException:
        await asyncio.shield(running.stop())
        raise
    logger.info("draft model ready %s", loaded.description)
    _log_ready(capabilities, running)
    return running


def _capabilities(
    settings: ProposerSettings, instance_id: str = "", loaded: LoadedDraftModel | None = None
) -> proposer_pb2.Capabilities:
    limits = [settings.context_limit, loaded.context_limit if loaded else 0]
    return describe(
        instance_id=instance_id or uuid.uuid4().hex,
        name=settings.name or settings.method,
        method=settings.method,
        max_sequences=settings.max_sequences,
        max_draft_tokens=settings.max_draft_tokens,
        context_limit=min((limit for limit in limits if limit), default=0),
        lookahead=settings.lookahead,
        vocabulary_fingerprint=loaded.vocabulary_fingerprint if loaded else "",
        vocabulary_size=loaded.vocabulary_size if loaded else 0,
        options=settings.method_options(),
    )


def _log_ready(capabilities: proposer_pb2.Capabilities, running: RunningServer) -> None:
    logger.info(
        "proposer ready name=%s method=%s address=%s",
        capabilities.name,
        capabilities.method,
        running.address,
    )


async def serve_proposer(
    proposer: Proposer,
    capabilities: proposer_pb2.Capabilities,
    listen: str,
    drain_seconds: float = 2.0,
    credentials: Credentials = PLAIN,
) -> RunningServer:
    """Serve any proposer, for instance a method of your own.

    Raises InputError where `listen` cannot be listened at. The caller stops the server.
    """
    servicer = ProposerServicer(proposer, capabilities)
    return await serve_servicer(servicer, listen, drain_seconds, credentials)


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


def _tracer(
    telemetry: Telemetry | None, capabilities: proposer_pb2.Capabilities
) -> SequenceTracer | None:
    if telemetry is None:
        return None
    from proposer_service.tracing import SequenceTracer

    return SequenceTracer(telemetry.tracer, capabilities.name, capabilities.method)


def make_proposer(settings: ProposerSettings) -> Proposer:
    """The method that the settings name, one that loads nothing."""
    if settings.method == "ngram":
        return ngram_proposer(settings.prompt_lookup_min, settings.prompt_lookup_max)
    return SuffixProposer(settings.suffix_options())


async def _serve(settings: ProposerSettings) -> bool:
    """Serve until told to stop; whether that was while a model was loading."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.ensure_future(start(settings))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        logger.info("proposer stopped while loading")
        return True
    running = starting.result()
    # Texts and tries are hundreds of thousands of containers that no collection would free.
    garbage.settle()
    sys.setswitchinterval(_SWITCH_SECONDS)
    await stopping
    logger.info("proposer draining")
    await running.stop()
    logger.info("proposer stopped")
    return False
