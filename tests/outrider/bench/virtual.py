"""Time that passes only when nothing else can happen, and HTTP without sockets.

A virtual loop jumps to its next timer instead of waiting for it, so that a script of seconds runs
in milliseconds and every measured time is exact.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import httpx
from starlette.types import ASGIApp, Message

_T = TypeVar("_T")


class _Selector(selectors.SelectSelector):
    """Never blocks: what would have been waited for is added to the loop's time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("nothing is left that could ever happen")
        self.now += max(timeout, 0)
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        # A timer is due when the time is within this of it; the sum of timeouts is not exact.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual.now


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """`work` in a loop of virtual time that starts at 0."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


class StreamingTransport(httpx.AsyncBaseTransport):
    """Sends each request to an ASGI app in this loop; the body comes as the app sends it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path,
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(k.lower(), v) for k, v in request.headers.raw],
            "server": (request.url.host, request.url.port),
            "client": ("test", 1),
        }
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            message = next(asked, None)
            if message is None:
                await asyncio.Event().wait()
            assert message is not None
            return message

        async def serve() -> None:
            try:
                await self._app(scope, receive, sent.put)
            finally:
                await sent.put(None)

        task = asyncio.create_task(serve())
        start = await sent.get()
        if start is None:
            await task
            raise AssertionError("the app sent nothing")
        return httpx.Response(
            start["status"], headers=start["headers"], stream=_Body(task, sent), request=request
        )


class _Body(httpx.AsyncByteStream):
    def __init__(self, task: asyncio.Task[None], sent: asyncio.Queue[Message | None]) -> None:
        self._task = task
        self._sent = sent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            if message.get("body"):
                yield message["body"]
        if self._task.done() and self._task.exception() is not None:
            raise httpx.RemoteProtocolError("the app broke off")

    async def aclose(self) -> None:
        self._task.cancel()
