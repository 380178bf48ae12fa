from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from verifier_service.handover import Handover
from verifier_service.messages import Output


class Collector:
    def __init__(self, fail_at: int = -1) -> None:
        self.seen: list[int] = []
        self.crashes: list[Exception] = []
        self._fail_at = fail_at

    def take_output(self, output: Output) -> None:
        if output.token_ids[0] == self._fail_at:
            raise RuntimeError("broken")
        self.seen.append(output.token_ids[0])

    def crash(self, error: Exception) -> None:
        self.crashes.append(error)


class CountingLoop:
    """The one method of a loop that a hand-over uses, counted."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self.calls.append(callback)


def made() -> tuple[Handover, CountingLoop]:
    loop = CountingLoop()
    stand_in: Any = loop
    return Handover(stand_in), loop


def test_many_outputs_cost_one_wake_up() -> None:
    handover, loop = made()
    a, b = Collector(), Collector()
    sinks = [handover.sink(a), handover.sink(b)]
    for i in range(10):
        sinks[i % 2](Output(token_ids=(i,)))
    assert len(loop.calls) == 1
    loop.calls[0]()
    assert (a.seen, b.seen) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    sinks[0](Output(token_ids=(10,)))
    assert len(loop.calls) == 2


def test_a_receiver_that_breaks_harms_no_other() -> None:
    handover, _ = made()
    bad, good = Collector(fail_at=0), Collector()
    handover.sink(bad)(Output(token_ids=(0,)))
    handover.sink(good)(Output(token_ids=(0,)))
    handover.deliver()
    assert [str(e) for e in bad.crashes] == ["broken"]
    assert good.seen == [0]


def test_nothing_wakes_a_closed_one() -> None:
    handover, loop = made()
    handover.close()
    handover.sink(Collector())(Output(token_ids=(0,)))
    assert loop.calls == []


async def test_no_output_is_lost_between_threads() -> None:
    handover = Handover(asyncio.get_running_loop())
    collectors = [Collector() for _ in range(4)]

    def produce(collector: Collector) -> None:
        sink = handover.sink(collector)
        for i in range(2000):
            sink(Output(token_ids=(i,)))

    threads = [threading.Thread(target=produce, args=(c,)) for c in collectors]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(20):
        while any(len(c.seen) < 2000 for c in collectors):
            await asyncio.sleep(0.001)
    assert all(c.seen == list(range(2000)) for c in collectors)
