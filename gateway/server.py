"""Runs the gateway: listens, serves, drains.

Knows sockets, signals and the order of starting and stopping; does not know the endpoints.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import uvicorn

from gateway.app import build_app
from gateway.connections import ConnectionLimits
from gateway.dashboard.feed import LiveFeed
from gateway.dashboard.running import RunningRequests
from gateway.draining import Drain
from gateway.evidence.evidence import Evidence
from gateway.http_server import HttpServer
from gateway.open_files import room_for_connections
from gateway.routing import VerifierPool
from gateway.settings import GatewaySettings
from outrider import logs
from outrider.errors import InputError
from outrider.starting_telemetry import start_telemetry
from outrider.telemetry import GATEWAY_SERVICE

if TYPE_CHECKING:
    from gateway.tracing import GatewayTracer
    from outrider.tracing import Telemetry

logger = logging.getLogger(__name__)

# Longer than common clients keep an idle connection, so that they close it and never use one
# that is being closed here.
_KEEP_ALIVE_S = 75

# After the drain, how long streams have to say that they were cut.
_FAREWELL_S = 2


class AddressUnavailableError(InputError):
    """The host and port cannot be listened on."""


class RunningGateway:
    """A gateway that serves at `url` until `stop`."""

    def __init__(
        self,
        url: str,
        settings: GatewaySettings,
        server: HttpServer,
        serving: asyncio.Task[None],
        pool: VerifierPool,
        stopping: asyncio.Event,
        feed: LiveFeed,
        drain: Drain,
        evidence: Evidence,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry
        self.evidence = evidence
        self.url = url
        self._settings = settings
        self._server = server
        self._serving = serving
        self._pool = pool
        self._stopping = stopping
        self._feed = feed
        self._drain = drain

    async def wait(self) -> None:
        """Until the server has ended, of itself or by `stop`."""
        await asyncio.wait({self._serving})

    def hurry(self) -> None:
        """End running requests now, with an error; for a drain that takes too long."""
        self._stopping.set()

    async def stop(self) -> None:
        """Refuse new work with 503, let running work end for `drain_timeout_s`, cut the rest."""
        self._drain.begin()
        waits = [
            asyncio.create_task(self._drain.wait_idle()),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(
                {*waits, self._serving},
                timeout=self._settings.drain_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._stopping.set()
            # Its listeners would never leave by themselves.
            await self._feed.close()
            self._server.should_exit = True
            await self._serving
        finally:
            for wait in waits:
                wait.cancel()
            await self._pool.close()
            if self._telemetry is not None:
                await asyncio.to_thread(self._telemetry.shutdown)
            # Behind what hands it the last spans.
            await self.evidence.stop()


def run(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends running requests at once.

    Raises AddressUnavailableError.
    """
    logs.configure(settings.log_level)
    asyncio.run(_run(settings))


async def start(settings: GatewaySettings) -> RunningGateway:
    """Serve on the running loop; returns once requests are answered.

    Raises AddressUnavailableError, or InputError for the address that OTLP is received at.
    """
    listener = _listen(settings)
    evidence = Evidence(settings.evidence, settings.credentials)
    try:
        await evidence.start()
    except BaseException:
        listener.close()
        await evidence.stop()
        raise
    pool = VerifierPool(
        settings.verifiers,
        connect_timeout_s=settings.connect_timeout_s,
        poll_interval_s=settings.poll_interval_s,
        lookup_interval_s=settings.lookup_interval_s,
        credentials=settings.credentials,
    )
    pool.start()
    stopping = asyncio.Event()
    running = RunningRequests()
    feed = LiveFeed(pool, running, interval_s=settings.poll_interval_s)
    feed.start()
    drain = Drain()
    own = settings.evidence.listen and not settings.trace.endpoint
    telemetry = start_telemetry(
        settings.trace,
        GATEWAY_SERVICE,
        uuid.uuid4().hex,
        credentials=settings.credentials,
        # A gateway that receives what others trace needs no port for what it traces itself.
        delivery=evidence.delivery() if own else None,
    )
    limits = _connection_limits(settings)
    config = uvicorn.Config(
        build_app(
            settings,
            pool,
            stopping,
            running,
            feed,
            drain,
            evidence,
            _tracer(telemetry, settings),
        ),
        http="h11",
        h11_max_incomplete_event_size=limits.max_head_bytes,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FAREWELL_S,
    )
    server = HttpServer(config, limits, settings.https)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        ready.cancel()
        await feed.close()
        await pool.close()
        if telemetry is not None:
            await asyncio.to_thread(telemetry.shutdown, 0)
        await evidence.stop()
        serving.result()
    url = _url(settings, listener.getsockname()[1])
    return RunningGateway(
        url, settings, server, serving, pool, stopping, feed, drain, evidence, telemetry
    )


def _connection_limits(settings: GatewaySettings) -> ConnectionLimits:
    """The settings' own, with no more connections than the system lets this process have."""
    limits = settings.connections
    room = room_for_connections(limits.max_connections)
    if room < limits.max_connections:
        logger.warning(
            "the system's limit of open files (ulimit -n) leaves room for %d connections, not %d",
            room,
            limits.max_connections,
        )
    return replace(limits, max_connections=room)


def _tracer(telemetry: Telemetry | None, settings: GatewaySettings) -> GatewayTracer | None:
    if telemetry is None:
        return None
    from gateway.tracing import GatewayTracer

    return GatewayTracer(telemetry.tracer, settings.trace)


async def _run(settings: GatewaySettings) -> None:
    gateway = await start(settings)
    logger.info("gateway listens at %s", gateway.url)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def on_signal() -> None:
        if asked.is_set():
            gateway.hurry()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    signalled = asyncio.create_task(asked.wait())
    ended = asyncio.create_task(gateway.wait())
    await asyncio.wait({signalled, ended}, return_when=asyncio.FIRST_COMPLETED)
    logger.info("gateway stops")
    await gateway.stop()
    signalled.cancel()
    logger.info("gateway stopped")


def _listen(settings: GatewaySettings) -> socket.socket:
    host, port = settings.host, settings.port
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise AddressUnavailableError(
            f"host: {host!r} is not a known host or address: {error}"
        ) from error
    family, kind, protocol, _, address = infos[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise AddressUnavailableError(
            f"port: {port} on {host} cannot be used ({reason}); "
            "stop what holds it or choose another port"
        ) from error
    return listener


def _url(settings: GatewaySettings, port: int) -> str:
    host = settings.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    scheme = "http" if settings.https is None else "https"
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"
