"""A process that may open few files: what connections it takes, and what a flood of them does."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from gateway.open_files import RESERVED, room_for_connections
from gateway.server import RunningGateway


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class System:
    """A limit of open files that is nobody's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.limits = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.limits)
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _: int, limits: tuple[int, int]) -> None:
        assert limits[0] <= limits[1] or limits[1] == resource.RLIM_INFINITY
        self.limits = limits


ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "room", "raised"),
    [
        (1024, 1048576, 4096, 4096 + RESERVED),
        (1024, ENDLESS, 4096, 4096 + RESERVED),
        (1024, 2048, 2048 - RESERVED, 2048),
        (1024, 1024, 1024 - RESERVED, 1024),
        (100, 200, 100, 200),
        (65536, 65536, 4096, 65536),
        (ENDLESS, ENDLESS, 4096, ENDLESS),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, room: int, raised: int
) -> None:
    system = System(monkeypatch, soft, hard)
    assert room_for_connections(4096) == room
    assert system.limits == (raised, hard)


async def test_connections_that_cannot_be_accepted_fill_no_log(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    clients = [socket.socket() for _ in range(8)]
    for client in clients:
        client.setblocking(False)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest free number is given out first: with the holes filled, no more can be opened.
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.dup(clients[0].fileno())]
    while fillers[-1] < highest:
        fillers.append(os.dup(clients[0].fileno()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1, before[1]))
    loop = asyncio.get_running_loop()

    def complaints() -> int:
        return sum(record.name == "asyncio" for record in caplog.records)

    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(30):
            for client in clients:
                await loop.sock_connect(client, (host, int(port)))
            while not complaints():
                await asyncio.sleep(0)
    assert complaints() <= 4
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for filler in fillers:
        os.close(filler)
    # They waited in the listener's queue, and have their turn.
    async with asyncio.timeout(30):
        await loop.sock_sendall(clients[-1], b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await loop.sock_recv(clients[-1], 100)).startswith(b"HTTP/1.1 200")
    for client in clients:
        client.close()
