"""Streams without processes or time: a transport that tests command.

`FakeNetwork` is a `Transport` and its own `Clock`. Nothing happens on another thread and nothing
sleeps: events run when someone waits on the clock or advances it, in order of their virtual time,
so a test of deadlines and failures takes microseconds and always goes the same way.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from outrider.transport import Listener


class Peer(Protocol):
    """The far end of one stream."""

    def received(self, data: bytes) -> None:
        """One message of the client."""

    def closed(self) -> None:
        """The client ended the stream, or a fault did."""


# Makes the far end of a new stream: given how to answer (bytes) and how to end it (code, detail).
PeerFactory = Callable[[Callable[[bytes], None], Callable[[str, str], None]], Peer]


@dataclass(slots=True)
class Endpoint:
    """One address and the faults of the way from it to the client.

    `delay` is in seconds; while `held`, messages pile up until `FakeNetwork.release`; the next
    `drop` messages vanish, the next `duplicate` ones arrive twice; `reorder` swaps the next pair.
    """

    serve: PeerFactory | None = None
    refusal: str = "connection refused"
    delay: float = 0.0
    held: bool = False
    drop: int = 0
    duplicate: int = 0
    reorder: bool = False
    connects: int = 0
    streams: list[FakeStream] = field(default_factory=list)
    pile: list[tuple[FakeStream, bytes]] = field(default_factory=list)
    swapped: tuple[FakeStream, bytes] | None = None


class FakeStream:
    """One open stream; both its ends live in this process."""

    def __init__(self, network: FakeNetwork, endpoint: Endpoint, listener: Listener) -> None:
        self._network = network
        self._endpoint = endpoint
        self._listener = listener
        self._peer: Peer | None = None
        self.open = True

    def send(self, data: bytes) -> None:
        self._network.schedule(0.0, lambda: self._to_peer(data))

    def close(self) -> None:
        if self.open:
            self.open = False
            self._network.schedule(0.0, self._tell_peer)

    def start(self, serve: PeerFactory) -> None:
        """Make the far end; what was sent before is delivered after it."""
        self._peer = serve(self._answer, self.end)

    def end(self, code: str, detail: str) -> None:
        """End the stream from the far side or by a fault."""
        if self.open:
            self.open = False
            self._tell_peer()
            self._listener.closed(code, detail)

    def deliver(self, data: bytes) -> None:
        """Bring one message to the client now."""
        if self.open:
            self._listener.received(data)

    def _answer(self, data: bytes) -> None:
        self._network.carry(self._endpoint, self, data)

    def _to_peer(self, data: bytes) -> None:
        if self.open and self._peer is not None:
            self._peer.received(data)

    def _tell_peer(self) -> None:
        if self._peer is not None:
            self._peer.closed()


class FakeNetwork:
    """Endpoints by address, and virtual seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._endpoints: dict[str, Endpoint] = {}

    def now(self) -> float:
        return self._now

    def wait(self, condition: threading.Condition, timeout: float) -> None:
        """Run the next event within `timeout` seconds; without one, let the time pass."""
        until = self._now + timeout
        if self._events and self._events[0][0] <= until:
            self._run_next()
        else:
            self._now = until

    def advance(self, seconds: float = 0.0) -> None:
        """Let time pass and run everything due in it, its consequences included."""
        until = self._now + seconds
        while self._events and self._events[0][0] <= until:
            self._run_next()
        self._now = until

    def schedule(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + delay, next(self._order), event))

    def endpoint(self, address: str) -> Endpoint:
        """The address's faults and streams; made on first use, with nobody serving."""
        return self._endpoints.setdefault(address, Endpoint())

    def serve(self, address: str, factory: PeerFactory) -> Endpoint:
        """Start (or restart) the process behind an address."""
        endpoint = self.endpoint(address)
        endpoint.serve = factory
        return endpoint

    def kill(self, address: str, code: str = "UNAVAILABLE", detail: str = "socket closed") -> None:
        """End the process: its streams break, nobody answers until `serve`."""
        endpoint = self.endpoint(address)
        endpoint.serve = None
        self.break_streams(address, code, detail)

    def break_streams(
        self, address: str, code: str = "UNAVAILABLE", detail: str = "reset by peer"
    ) -> None:
        """Break the streams while the process lives on."""
        endpoint = self.endpoint(address)
        streams, endpoint.streams = endpoint.streams, []
        endpoint.pile.clear()
        endpoint.swapped = None
        for stream in streams:
            stream.end(code, detail)

    def release(self, address: str) -> None:
        """Deliver what was held, in order, and hold no more."""
        endpoint = self.endpoint(address)
        endpoint.held = False
        pile, endpoint.pile = endpoint.pile, []
        for stream, data in pile:
            self._schedule_delivery(endpoint, stream, data)

    def connect(self, address: str, listener: Listener) -> FakeStream:
        endpoint = self.endpoint(address)
        endpoint.connects += 1
        stream = FakeStream(self, endpoint, listener)
        endpoint.streams = [s for s in endpoint.streams if s.open]
        endpoint.streams.append(stream)
        self.schedule(0.0, lambda: self._accept(endpoint, stream))
        return stream

    def close(self, timeout: float) -> None:
        for endpoint in self._endpoints.values():
            for stream in endpoint.streams:
                stream.close()

    def carry(self, endpoint: Endpoint, stream: FakeStream, data: bytes) -> None:
        """Take one message of the far end towards the client, through the endpoint's faults."""
        if endpoint.drop > 0:
            endpoint.drop -= 1
            return
        if endpoint.reorder and endpoint.swapped is None:
            endpoint.swapped = (stream, data)
            return
        deliveries = [(stream, data)]
        if endpoint.swapped is not None:
            deliveries.append(endpoint.swapped)
            endpoint.swapped = None
            endpoint.reorder = False
        if endpoint.duplicate > 0:
            endpoint.duplicate -= 1
            deliveries.append((stream, data))
        for target, message in deliveries:
            if endpoint.held:
                endpoint.pile.append((target, message))
            else:
                self._schedule_delivery(endpoint, target, message)

    def _schedule_delivery(self, endpoint: Endpoint, stream: FakeStream, data: bytes) -> None:
        self.schedule(endpoint.delay, lambda: stream.deliver(data))

    def _accept(self, endpoint: Endpoint, stream: FakeStream) -> None:
        if not stream.open:
            return
        if endpoint.serve is None:
            stream.end("UNAVAILABLE", endpoint.refusal)
        else:
            stream.start(endpoint.serve)

    def _run_next(self) -> None:
        due, _, event = heapq.heappop(self._events)
        self._now = max(self._now, due)
        event()
