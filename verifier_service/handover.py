"""Carries outputs from the engine's thread to the event loop, many for one wake-up.

Knows threads; does not know what an output means. The order of a request's outputs is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from verifier_service.messages import Output, OutputSink


class Receiver(Protocol):
    """Takes outputs on the event loop."""

    def take_output(self, output: Output) -> None: ...

    def crash(self, error: Exception) -> None:
        """`take_output` raised: this receiver, and no other, is done for."""


class Handover:
    """One queue between the engine's thread and one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[Receiver, Output]] = deque()
        self._woken = False
        self._closed = False

    def sink(self, receiver: Receiver) -> OutputSink:
        """What the core calls, on its own thread, with each output for `receiver`."""

        def take(output: Output) -> None:
            self._queue.append((receiver, output))
            # Cleared before the queue is read, so an output that sees it set will be read.
            if not self._woken and not self._closed:
                self._woken = True
                self._loop.call_soon_threadsafe(self.deliver)

        return take

    def deliver(self) -> None:
        """Give everything queued to its receiver; on the event loop."""
        self._woken = False
        queue = self._queue
        while queue:
            receiver, output = queue.popleft()
            try:
                receiver.take_output(output)
            except Exception as error:
                receiver.crash(error)

    def close(self) -> None:
        """No wake-up follows; called before the loop ends, once the engine is quiet."""
        self._closed = True
        self._queue.clear()
