"""What a protocol client needs of the world: streams of bytes, and time.

Knows no messages. gRPC implements `Transport` for processes, `fake_transport` for tests; both push
what arrives to a `Listener`, so that a client is one state machine whoever drives it.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Listener(Protocol):
    """The client's end of one stream; its methods may be called on any thread."""

    def received(self, data: bytes) -> None:
        """One message of the peer, in order."""

    def closed(self, code: str, detail: str) -> None:
        """The stream is over; `code` is a gRPC status code's name, `OK` for a regular end."""


class Stream(Protocol):
    """One open bidirectional stream."""

    def send(self, data: bytes) -> None:
        """Queue a message; never blocks. Messages to a closed stream vanish."""

    def close(self) -> None:
        """Cancel the stream; never blocks. Idempotent."""


class Transport(Protocol):
    """Opens streams."""

    def connect(self, address: str, listener: Listener) -> Stream:
        """Start a fresh connection; never blocks, failures arrive at `listener.closed`."""

    def close(self, timeout: float) -> None:
        """Cancel all streams and wait at most `timeout` seconds for their threads."""


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...

    def wait(self, condition: threading.Condition, timeout: float) -> None:
        """Wait on a condition that the caller holds; may return early."""


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout: float) -> None:
        condition.wait(timeout)
