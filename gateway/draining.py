"""The gateway's last moments: what runs may end, what is new is told to come back.

Knows requests as HTTP; does not know what stops the gateway or what the requests are for.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import unavailable
from gateway.linger import LingeringResponse

# What load balancers ask; the rest of what is only looked at goes on until the end.
_HEALTH_PATHS = frozenset({"/health", "/ping"})


class Drain:
    """Whether the gateway is stopping, and how many requests that do work (POSTs) are running."""

    def __init__(self) -> None:
        self.begun = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """From now on new work is refused and health is bad."""
        self.begun = True

    async def wait_idle(self) -> None:
        """Until no work is running."""
        await self._idle.wait()

    def enter(self) -> None:
        self._running += 1
        self._idle.clear()

    def leave(self) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()


class DrainMiddleware:
    """Counts work for a `Drain`, and answers 503 in the application's place once it has begun."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        works = scope["type"] == "http" and scope["method"] == "POST"
        if self._drain.begun and (works or scope.get("path") in _HEALTH_PATHS):
            # The connection is closed so that the client's next request finds another gateway.
            error = unavailable("the gateway is shutting down")
            headers = {**error.headers, "Connection": "close"}
            refusal = LingeringResponse(error.body(), status_code=error.status, headers=headers)
            await refusal(scope, receive, send)
            return
        if not works:
            await self._app(scope, receive, send)
            return
        self._drain.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.leave()
