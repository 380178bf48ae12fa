"""The proposer's process: from settings to a server that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import uuid
from typing import TYPE_CHECKING

from speculation.v1 import proposer_pb2, types_pb2

from outrider import garbage, logs
from outrider.credentials import PLAIN, Credentials
from outrider.errors import InputError, OperationError
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
from proposer_service.running_server import (
    MAX_CONCURRENT_CALLS,
    MAX_MESSAGE_BYTES,
    SERVICE_NAME,
    RunningServer,
    serve_servicer,
)
from proposer_service.servicer import ProposerServicer
from proposer_service.settings import ProposerSettings

if TYPE_CHECKING:
    from outrider.tracing import Telemetry
    from proposer_service.draft_model.loading import LoadedDraftModel
    from proposer_service.tracing import SequenceTracer

__all__ = [
    "MAX_CONCURRENT_CALLS",
    "MAX_MESSAGE_BYTES",
    "SERVICE_NAME",
    "RunningServer",
    "make_proposer",
    "run",
    "serve_proposer",
    "serve_servicer",
    "start",
]

logger = logging.getLogger(__name__)

# How long look-ahead may keep gRPC's own thread from saying that a step has arrived; the
# interpreter's default is 5 ms.
_SWITCH_SECONDS = 0.0002


def run(settings: ProposerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises InputError where the address or the model cannot be used, OperationError where a draft
    model's engine died: a process that cannot serve ends.
    """
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
        loaded.proposer.on_death = running.die
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
    q_forms = [types_pb2.Q_FORM_ONE_HOT]
    if loaded is not None and loaded.proposer.gives_q:
        q_forms.append(types_pb2.Q_FORM_SPARSE)
    return describe(
        instance_id=instance_id or uuid.uuid4().hex,
        name=settings.name or settings.method,
        method=settings.method,
        max_sequences=settings.max_sequences,
        max_draft_tokens=settings.max_draft_tokens,
        context_limit=min((limit for limit in limits if limit), default=0),
        lookahead=settings.lookahead,
        q_forms=q_forms,
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
    dying = asyncio.ensure_future(running.wait_dead())
    await asyncio.wait({stopping, dying}, return_when=asyncio.FIRST_COMPLETED)
    logger.info("proposer draining")
    await running.stop()
    if running.failure:
        # Whoever started the process can start it again; a card that failed does not recover in it.
        raise OperationError(f"the draft model's engine died: {running.failure}")
    logger.info("proposer stopped")
    return False
