"""Answers a request whose body is not wanted, so that the client can still read the answer.

Knows that most clients read only when they have sent everything, and lose an answer that was
followed by a reset. Does not know why the body is not wanted.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

# What is thrown away, chunk by chunk, before the connection is closed anyway.
MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
MAX_LINGER_S: Final = 10.0
MAX_IDLE_S: Final = 1.0


class LingeringResponse(JSONResponse):
    """Sends its answer at once, then discards what the client is still sending, within limits."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unfinished(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "more_body": True}
            await send(message)

        await super().__call__(scope, receive, send_unfinished)
        await _discard(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    discarded = 0
    try:
        async with asyncio.timeout(MAX_LINGER_S):
            while discarded < MAX_DISCARDED_BYTES:
                message = await asyncio.wait_for(receive(), MAX_IDLE_S)
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                discarded += len(message.get("body", b""))
    except TimeoutError:
        return
