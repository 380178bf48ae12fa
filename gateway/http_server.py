"""uvicorn as the gateway runs it: on a bound socket, with TLS or without, within limits.

Knows uvicorn's order of starting; does not know signals, verifiers or the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from gateway.connections import BoundedProtocol, ConnectionLimits
from outrider.https import Https

_BACKLOG = 1024


class HttpServer(uvicorn.Server):
    """Serves `config`'s application; leaves signals alone, which uvicorn would end the process by.

    `ready` is set once requests are answered. Without `https` it speaks plain HTTP.
    """

    def __init__(
        self, config: uvicorn.Config, limits: ConnectionLimits, https: Https | None = None
    ) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._limits = limits
        self._https = https

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own, which can bound neither connections nor handshakes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        context, patience = None, None
        if self._https is not None:
            context, patience = self._https.context(), self._limits.handshake_timeout_s
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=listener,
                ssl=context,
                ssl_handshake_timeout=patience,
                ssl_shutdown_timeout=patience,
                # How often asyncio accepts, and logs, in one go where no file can be opened.
                backlog=1,
            )
            for listener in sockets or ()
        ]
        for listener in sockets or ():
            listener.listen(_BACKLOG)
        self.started = True
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def _protocol(self) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state, self._limits)
