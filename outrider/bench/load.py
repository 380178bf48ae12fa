"""Sends a block of requests and waits for all of them.

Knows when to send (open loop, closed loop or both); does not know what is sent. Time is the event
loop's, so that a test's loop may skip it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from outrider.bench.records import Record

# Called with the place of a request in its block; sends it and returns when it is over.
Send = Callable[[int], Awaitable[Record]]


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that were measured together. Times are seconds on the loop's clock.

    `peak` is the largest number of requests that were under way at once.
    """

    records: tuple[Record, ...]
    began: float
    duration: float
    peak: int

    @property
    def whole(self) -> bool:
        """Whether every request was answered."""
        return all(record.ok for record in self.records)

    @property
    def output_tokens(self) -> int:
        return sum(record.output_tokens for record in self.records if record.ok)


async def run_block(
    send: Send,
    offsets: Sequence[float],
    max_concurrency: int | None,
    on_done: Callable[[Record], None],
) -> Block:
    """Send one request for each of `offsets` (seconds after the start at which it is due).

    No more than `max_concurrency` are under way at once: with all offsets 0 that is a closed
    loop, where each answer makes room for the next request. A request that waits for room is
    sent late, and its times count from the sending.
    """
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(max_concurrency or max(len(offsets), 1))
    under_way = peak = 0
    began = loop.time()

    async def one(index: int, offset: float) -> Record:
        nonlocal under_way, peak
        await asyncio.sleep(max(began + offset - loop.time(), 0))
        async with room:
            under_way += 1
            peak = max(peak, under_way)
            try:
                record = await send(index)
            finally:
                under_way -= 1
        on_done(record)
        return record

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(i, offset)) for i, offset in enumerate(offsets)]
    records = tuple(task.result() for task in tasks)
    return Block(records, began, loop.time() - began, peak)
