"""Sends messages over a connection from a thread of its own, so that who sends never waits.

Knows bytes and order; does not know what they mean. The queue has no limit of its own: from the
edge it holds requests that a verifier has let in, from the engine what running requests have
emitted, so it is bounded by the waiting queue and by the tokens that running requests may emit.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from multiprocessing.connection import Connection

_log = logging.getLogger(__name__)


class Outbox:
    """One connection's sending side. All methods are thread-safe."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._queue: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Messages that are not on their way yet."""
        return len(self._queue)

    def put(self, data: bytes) -> None:
        """Send in order; what the other side no longer reads is dropped."""
        with self._changed:
            if self._closing:
                return
            self._queue.append(data)
            self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Send what is queued and stop; whether all of it went out in time. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._queue

    def _main(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                data = self._queue[0]
            try:
                self._connection.send_bytes(data)
            except OSError as error:
                # Its reader says what became of the other side.
                _log.debug("the channel to the other process is closed: %s", error)
                with self._changed:
                    self._closing = True
                return
            self._queue.popleft()
