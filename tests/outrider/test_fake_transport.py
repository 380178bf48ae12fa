from __future__ import annotations

import threading

import pytest

from outrider.fake_transport import FakeNetwork
from outrider.transport import Stream


class Ear:
    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.end: tuple[str, str] | None = None

    def received(self, data: bytes) -> None:
        self.heard.append(data)

    def closed(self, code: str, detail: str) -> None:
        self.end = (code, detail)


class Echo:
    """Answers each message with itself; one object is one process."""

    def __init__(self) -> None:
        self.streams_closed = 0

    def __call__(self, reply, end) -> Echo:  # type: ignore[no-untyped-def]
        self.reply = reply
        self.end = end
        return self

    def received(self, data: bytes) -> None:
        self.reply(data)

    def closed(self) -> None:
        self.streams_closed += 1


@pytest.fixture
def network() -> FakeNetwork:
    return FakeNetwork()


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def stream(network: FakeNetwork, ear: Ear) -> Stream:
    network.serve("a", Echo())
    return network.connect("a", ear)


def test_delivers_in_order(network: FakeNetwork, ear: Ear, stream: Stream) -> None:
    stream.send(b"1")
    stream.send(b"2")
    assert ear.heard == []
    network.advance()
    assert ear.heard == [b"1", b"2"]


def test_nobody_serving_is_unavailable(network: FakeNetwork, ear: Ear) -> None:
    network.connect("nobody", ear)
    network.advance()
    assert ear.end == ("UNAVAILABLE", "connection refused")


def test_kill_breaks_streams_and_refuses_until_served(
    network: FakeNetwork, ear: Ear, stream: Stream
) -> None:
    network.advance()
    network.kill("a")
    assert ear.end == ("UNAVAILABLE", "socket closed")
    stream.send(b"lost")
    second = Ear()
    network.connect("a", second)
    network.advance()
    assert second.end is not None
    network.serve("a", Echo())
    third = Ear()
    network.connect("a", third).send(b"x")
    network.advance()
    assert third.heard == [b"x"]


def test_delay_is_virtual(network: FakeNetwork, ear: Ear, stream: Stream) -> None:
    network.endpoint("a").delay = 3600.0
    stream.send(b"1")
    network.advance(3599.0)
    assert ear.heard == []
    network.advance(1.0)
    assert ear.heard == [b"1"]
    assert network.now() == 3600.0


def test_held_messages_wait_for_release(network: FakeNetwork, ear: Ear, stream: Stream) -> None:
    network.endpoint("a").held = True
    stream.send(b"1")
    stream.send(b"2")
    network.advance(10.0)
    assert ear.heard == []
    network.release("a")
    network.advance()
    assert ear.heard == [b"1", b"2"]


def test_drop_duplicate_reorder(network: FakeNetwork, ear: Ear, stream: Stream) -> None:
    endpoint = network.endpoint("a")
    endpoint.drop = 1
    stream.send(b"gone")
    network.advance()
    endpoint.duplicate = 1
    stream.send(b"twice")
    network.advance()
    endpoint.reorder = True
    stream.send(b"1")
    stream.send(b"2")
    stream.send(b"3")
    network.advance()
    assert ear.heard == [b"twice", b"twice", b"2", b"1", b"3"]


def test_closing_tells_the_peer_and_not_the_listener(network: FakeNetwork, ear: Ear) -> None:
    echo = Echo()
    network.serve("a", echo)
    stream = network.connect("a", ear)
    network.advance()
    stream.close()
    stream.close()
    network.advance()
    assert echo.streams_closed == 1
    assert ear.end is None


def test_the_peer_may_end_the_stream(network: FakeNetwork, ear: Ear) -> None:
    echo = Echo()
    network.serve("a", echo)
    network.connect("a", ear)
    network.advance()
    echo.end("FAILED_PRECONDITION", "not you")
    assert ear.end == ("FAILED_PRECONDITION", "not you")


def test_waiting_runs_one_event_or_lets_time_pass(
    network: FakeNetwork, ear: Ear, stream: Stream
) -> None:
    network.advance()
    network.endpoint("a").delay = 0.5
    stream.send(b"1")
    condition = threading.Condition()
    network.wait(condition, 1.0)  # The peer hears.
    network.wait(condition, 1.0)  # The answer arrives.
    assert (ear.heard, network.now()) == ([b"1"], 0.5)
    network.wait(condition, 1.0)
    assert network.now() == 1.5
