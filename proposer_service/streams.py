"""One verifier's stream of messages; knows gRPC, and not what the messages say."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from speculation.v1 import proposer_pb2

Context = grpc.aio.ServicerContext[proposer_pb2.ProposeRequest, proposer_pb2.ProposeResponse]


class Stream:
    """Reads one stream's messages; can be told to end from outside."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reading: asyncio.Task[Any] | None = None
        self._verdict: tuple[grpc.StatusCode, str] | None = None

    def end(self, code: grpc.StatusCode, detail: str) -> None:
        """End the stream with a status as soon as the answer in progress is sent."""
        self._verdict = (code, detail)
        if self._reading is not None:
            self._reading.cancel()

    def read_ahead(self) -> None:
        """Start to receive the next message."""
        self._reading = asyncio.ensure_future(self._context.read())

    @property
    def arrived(self) -> bool:
        """Whether the message that is read ahead is here, or the stream over."""
        return self._verdict is not None or (self._reading is not None and self._reading.done())

    async def next(self) -> proposer_pb2.ProposeRequest | None:
        """The next message; None at the stream's end."""
        if self._verdict is None:
            reading = self._reading or asyncio.ensure_future(self._context.read())
            self._reading = reading
            try:
                message = await reading
            except asyncio.CancelledError:
                # Either `end` cancelled the reading, or gRPC this whole call.
                if self._verdict is None:
                    raise
            else:
                self._reading = None
                return message if isinstance(message, proposer_pb2.ProposeRequest) else None
        if self._verdict is not None:
            await self._context.abort(*self._verdict)
        return None
