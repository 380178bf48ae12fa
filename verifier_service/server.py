"""The verifier's process: from settings to a server that runs until it is told to stop.

Knows signals and what happens when; the server itself is running_server.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial

from outrider import garbage, logs, turns
from outrider.errors import OperationError
from verifier_service.backend import Backend, NoProposers, ProposerStates, load_backend
from verifier_service.core import EngineCore
from verifier_service.engine_process.choice import runs_apart
from verifier_service.engine_process.process import EngineProcess
from verifier_service.messages import NoDrafts
from verifier_service.running_server import RunningServer, bind, first_of
from verifier_service.settings import VerifierSettings
from verifier_service.target_facts import SamplingDefaults
from verifier_service.text import Text

logger = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: VerifierSettings) -> bool:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the drain.

    True where it was stopped while a model loads: a thread goes on with that until the process
    ends, which must then be at once (`outrider.parent.end_now`).

    Raises InputError where the model or the address cannot be used, OperationError when the
    engine died: a process that cannot serve ends, so that whoever started it can start it again.
    """
    logs.configure(settings.log_level)
    return asyncio.run(_serve(settings))


async def start(
    settings: VerifierSettings,
    *,
    core: EngineCore,
    text: Text,
    proposers: ProposerStates | None = None,
    defaults: SamplingDefaults | None = None,
) -> RunningServer:
    """Serve with parts that are loaded already.

    `defaults` None are the neutral values. Raises InputError where the address cannot be
    listened at. The caller stops the server, which shuts the core down.
    """
    running = await bind(settings, uuid.uuid4().hex)
    await running.attach(
        Backend(
            core=core,
            text=text,
            proposers=proposers or NoProposers(),
            defaults=defaults or SamplingDefaults(),
            source=NoDrafts(),
        )
    )
    return running


async def _serve(settings: VerifierSettings) -> bool:
    begun = time.monotonic()
    instance_id = uuid.uuid4().hex
    with _Signals.installed() as signals:
        running = await bind(settings, instance_id)
        logger.info("verifier loading model=%s address=%s", settings.model, running.address)
        process: EngineProcess | None = None
        try:
            load = partial(load_backend, settings, instance_id)
            if runs_apart(settings):
                process = EngineProcess.start()
                logger.info("engine process started pid=%d", process.pid)
                load = partial(load, process=process)
            loading = _on_thread(load)
            await first_of(signals.first.wait(), asyncio.wait({loading}))
            if not loading.done():
                # Loading cannot be interrupted; its thread ends with the process.
                logger.info("verifier stopped while loading")
                loading.cancel()
                return True
            backend = loading.result()
            await running.attach(backend)
            garbage.settle()
            turns.be_short()
            _log_ready(settings, running, backend, time.monotonic() - begun)
            await first_of(signals.first.wait(), running.wait_dead())
            if backend.core.failure:
                raise OperationError(f"the verifier's engine died: {backend.core.failure}")
            logger.info("verifier draining seconds=%g", settings.drain_seconds)
            draining = asyncio.create_task(running.stop())
            await first_of(signals.second.wait(), asyncio.wait({draining}))
            running.hurry()
            await draining
        finally:
            await running.stop(0)
            if process is not None:
                # Loading cannot be interrupted otherwise; what served has ended already.
                process.kill()
    logger.info("verifier stopped")
    return False


class _Signals:
    """The first and the second stop signal, as events of the running loop."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    @classmethod
    @contextlib.contextmanager
    def installed(cls) -> Iterator[_Signals]:
        """Within the body stop signals set the events; afterwards the old handlers are back."""
        signals = cls()
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, signals._heard)
        try:
            yield signals
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _heard(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def _on_thread(load: Callable[[], Backend]) -> asyncio.Future[Backend]:
    """Run `load` on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Backend] = loop.create_future()

    def settle(backend: Backend | None, error: BaseException | None) -> None:
        if future.cancelled():
            if backend is not None:
                loop.run_in_executor(None, backend.close)
            return
        if backend is not None:
            future.set_result(backend)
        elif error is not None:
            future.set_exception(error)

    def body() -> None:
        backend, failure = None, None
        try:
            backend = load()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, backend, failure)
        except RuntimeError:
            # The loop ended while the model loaded: nobody waits for it any more.
            if backend is not None:
                backend.close()

    threading.Thread(target=body, name="loader", daemon=True).start()
    return future


def _log_ready(
    settings: VerifierSettings, running: RunningServer, backend: Backend, seconds: float
) -> None:
    model = backend.core.model
    logger.info(
        "verifier ready model=%s address=%s engine=%s device=%s dtype=%s max_model_len=%d "
        "proposers=%d num_speculative_tokens=%d seconds=%.2f",
        settings.served_model_name,
        running.address,
        model.engine,
        model.device,
        model.dtype,
        model.max_model_len,
        len(settings.proposers),
        settings.num_speculative_tokens,
        seconds,
    )
