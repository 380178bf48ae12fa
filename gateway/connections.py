"""One HTTP connection's limits: how long its head may take, how slowly it may read, how many there
are.

Knows uvicorn's HTTP/1.1 protocol; does not know what is asked. A connection costs a file and some
memory whether or not it ever asks for anything, so that each must get on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gateway.errors import ApiError
from gateway.linger import LingeringResponse

# Beyond the most connections, so many at once are told why they are closed.
_MOST_REFUSED: Final = 64
# How long a refused client may take to read why; what it still sends is thrown away meanwhile.
_FAREWELL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of each connection; seconds, bytes and counts.

    `head_timeout_s` is how long a request line with its headers may take from the connection's
    start, or from their first byte on a connection that is kept. `write_timeout_s` is how long a
    client may read nothing of an answer while more than the socket takes waits for it.
    `handshake_timeout_s` bounds TLS.
    """

    max_connections: int = 4096
    max_head_bytes: int = 64 * 1024
    max_headers: int = 128
    head_timeout_s: float = 20.0
    write_timeout_s: float = 60.0
    handshake_timeout_s: float = 10.0


DEFAULT_LIMITS: Final = ConnectionLimits()


class BoundedProtocol(H11Protocol):
    """uvicorn's connection within `limits`."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._limits = limits
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections + _MOST_REFUSED:
            self._refused = True
            transport.abort()
            return
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, f"this server has {self._limits.max_connections} connections already")
            return
        self._head_timer = self._head_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        waits = self.conn.their_state is h11.IDLE
        if waits and self._head_timer is None:
            self._head_timer = self._head_deadline()
        elif not waits and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(
                self._limits.write_timeout_s, self.transport.abort
            )

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        # uvicorn calls this while it handles h11's error, which knows more than its text.
        hint = getattr(sys.exception(), "error_status_hint", HTTPStatus.BAD_REQUEST)
        if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._refuse(hint, f"the request's head is above {self._limits.max_head_bytes} bytes")
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP/1.1 request")

    def _head_deadline(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self._limits.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(
                408, f"the request's head did not arrive within {self._limits.head_timeout_s:g} s"
            )

    def _refuse(self, status: int, message: str) -> None:
        """Answer in the application's place, where that is still possible, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._answering:
            body = json.dumps(ApiError(status, message).body()).encode()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self._refused = True
        if self.cycle is not None:
            # Whoever waits for the rest of a body, waits for nothing.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            # Closing with bytes unread would reset the connection, and the answer with it.
            self.transport.write_eof()
        self.loop.call_later(_FAREWELL_S, self.transport.abort)

    @property
    def _answering(self) -> bool:
        return (
            self.cycle is not None
            and self.cycle.response_started
            and (not self.cycle.response_complete)
        )


class HeadLimits:
    """Refuses requests whose head, complete as it is, is larger than `limits` allow."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else ""
        if not problem:
            await self._app(scope, receive, send)
            return
        error = ApiError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem)
        headers = {"Connection": "close"}
        response = LingeringResponse(error.body(), status_code=error.status, headers=headers)
        await response(scope, receive, send)

    def _problem(self, scope: Scope) -> str:
        headers = scope["headers"]
        if len(headers) > self._limits.max_headers:
            return f"the request has {len(headers)} headers; {self._limits.max_headers} are allowed"
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in headers)
        if size > self._limits.max_head_bytes:
            allowed = self._limits.max_head_bytes
            return f"the request's head has {size} bytes; {allowed} are allowed"
        return ""
