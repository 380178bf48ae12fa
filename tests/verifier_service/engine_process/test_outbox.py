"""Sending never waits, keeps its order, and ends."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from tests.verifier_service.engine_process.joined import WAIT_S
from verifier_service.engine_process.outbox import Outbox

Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


def test_messages_arrive_in_order(ends: Ends) -> None:
    outbox = Outbox(ends[0], "test")
    sent = [str(number).encode() for number in range(200)]
    for data in sent:
        outbox.put(data)
    assert [ends[1].recv_bytes() for _ in sent] == sent
    assert outbox.close(WAIT_S)
    assert outbox.waiting == 0


def test_a_reader_that_does_not_read_stops_nobody(ends: Ends) -> None:
    outbox = Outbox(ends[0], "test")
    large = bytes(1 << 20)
    for _ in range(20):
        outbox.put(large)
    # A socket holds a fraction of this.
    assert outbox.waiting >= 15
    for _ in range(20):
        assert ends[1].recv_bytes() == large
    assert outbox.close(WAIT_S)


def test_close_sends_what_is_queued_and_takes_no_more(ends: Ends) -> None:
    outbox = Outbox(ends[0], "test")
    outbox.put(b"last words")
    assert outbox.close(WAIT_S)
    outbox.put(b"too late")
    assert outbox.close(0)
    assert ends[1].recv_bytes() == b"last words"
    assert not ends[1].poll()


def test_close_does_not_wait_for_a_reader_that_never_reads(ends: Ends) -> None:
    outbox = Outbox(ends[0], "test")
    outbox.put(bytes(4 << 20))
    assert not outbox.close(0.01)
    ends[1].close()
    assert not outbox.close(WAIT_S)


def test_the_other_sides_end_ends_it(ends: Ends) -> None:
    ends[1].close()
    outbox = Outbox(ends[0], "test")
    for _ in range(3):
        outbox.put(b"to nobody")
    outbox.close(WAIT_S)
    assert not outbox._thread.is_alive()
