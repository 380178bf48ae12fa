"""The live feed: one snapshot for all, a history for newcomers, verifiers that come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from speculation.v1 import verifier_pb2 as pb

from gateway.dashboard.feed import MAX_LISTENERS, LiveFeed
from gateway.dashboard.running import RunningRequests
from gateway.errors import ApiError
from gateway.routing import VerifierPool
from tests.gateway.dashboard.infos import info


@dataclass
class Seen:
    address: str
    info: pb.GetInfoResponse | None = None
    info_at: float = 0.0
    problem: str = ""
    in_flight: int = 0


@dataclass
class World:
    """A feed over verifiers that a test moves, and its clock."""

    verifiers: list[Seen] = field(default_factory=list)
    now: float = 100.0
    history: int = 5

    def __post_init__(self) -> None:
        self.feed = LiveFeed(
            cast(VerifierPool, self),
            RunningRequests(),
            history=self.history,
            monotonic=lambda: self.now,
            wall=lambda: self.now + 1e6,
        )

    def tell(self, verifier: Seen, answer: pb.GetInfoResponse) -> None:
        verifier.info, verifier.info_at = answer, self.now

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.feed.tick()


def read(event: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    return told


async def upcoming(listener: AsyncIterator[bytes]) -> dict[str, Any]:
    return read(await asyncio.wait_for(anext(listener), 10))


async def test_a_newcomer_gets_the_history_at_once() -> None:
    world = World([Seen("a")])
    for tokens in (5, 8, 12):
        world.tell(world.verifiers[0], info(tokens=tokens))
        world.tick()
    first = await upcoming(world.feed.listen())
    assert first["object"] == "live"
    told = [s["verifiers"].get("a", {}).get("generation_tokens") for s in first["history"]]
    assert told == [None, 3, 4]
    assert first["sample"] == first["history"][-1]


async def test_each_tick_is_one_event_without_history() -> None:
    world = World([Seen("a", info())])
    world.tick()
    listener = world.feed.listen()
    await upcoming(listener)
    world.tell(world.verifiers[0], info(tokens=6))
    world.tick()
    told = await upcoming(listener)
    assert "history" not in told
    assert told["sample"]["verifiers"]["a"]["generation_tokens"] == 6
    assert told["time"] == world.now + 1e6


async def test_a_snapshot_is_encoded_once_for_all() -> None:
    world = World([Seen("a", info())])
    world.tick()
    listeners = [world.feed.listen() for _ in range(3)]
    for listener in listeners:
        await anext(listener)
    assert world.feed.listeners == 3
    world.tick()
    frames = [await anext(listener) for listener in listeners]
    assert frames[0] is frames[1] is frames[2]


async def test_a_slow_listener_misses_no_sample() -> None:
    world = World([Seen("a", info())])
    world.tick()
    listener = world.feed.listen()
    await upcoming(listener)
    for tokens in (2, 3, 7):
        world.tell(world.verifiers[0], info(tokens=tokens))
        world.tick()
    told = await upcoming(listener)
    added = [s["verifiers"]["a"]["generation_tokens"] for s in told["history"]]
    assert added == [2, 1, 4]


async def test_the_history_is_bounded() -> None:
    world = World([Seen("a", info())], history=4)
    for _ in range(20):
        world.tick()
    assert len((await upcoming(world.feed.listen()))["history"]) == 4


async def test_a_listener_that_leaves_is_forgotten() -> None:
    world = World([Seen("a")])
    world.tick()
    listener = cast(Any, world.feed.listen())
    await upcoming(listener)
    assert world.feed.listeners == 1
    await listener.aclose()
    assert world.feed.listeners == 0


async def test_no_more_listeners_than_allowed() -> None:
    world = World([Seen("a")])
    world.tick()
    listeners = [world.feed.listen() for _ in range(MAX_LISTENERS)]
    for listener in listeners:
        await anext(listener)
    with pytest.raises(ApiError) as refused:
        world.feed.listen()
    assert refused.value.status == 429


async def test_closing_ends_every_stream() -> None:
    world = World([Seen("a")])
    world.feed.start()
    listener = world.feed.listen()
    await upcoming(listener)
    waiting = asyncio.ensure_future(anext(listener))
    await asyncio.sleep(0)
    await world.feed.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 10)
    assert [one async for one in world.feed.listen()] == []


async def test_it_ticks_by_itself() -> None:
    feed = LiveFeed(cast(VerifierPool, World([Seen("a")])), RunningRequests(), interval_s=0.001)
    feed.start()
    listener = feed.listen()
    numbers = [await upcoming(listener) for _ in range(3)]
    await feed.close()
    assert len({told["time"] for told in numbers}) > 1


def last_of(world: World) -> dict[str, Any]:
    sample: dict[str, Any] = world.feed._samples[-1]["verifiers"]
    return sample


async def test_what_a_verifier_did_before_it_was_seen_is_no_sample() -> None:
    world = World([Seen("a", info(tokens=1_000_000))])
    world.tick()
    assert last_of(world) == {}


async def test_an_answer_counts_once_however_often_it_is_looked_at() -> None:
    verifier = Seen("a", info())
    world = World([verifier])
    world.tick()
    world.tell(verifier, info(tokens=4))
    world.tick()
    world.tick()
    assert last_of(world) == {}
    world.tell(verifier, info(tokens=5))
    world.tick()
    assert last_of(world)["a"]["generation_tokens"] == 1


async def test_the_time_is_that_between_the_answers() -> None:
    verifier = Seen("a", info(), 100.0)
    world = World([verifier])
    world.tick()
    verifier.info, verifier.info_at = info(tokens=4), 102.5
    world.tick()
    assert last_of(world)["a"]["dt"] == 2.5


async def test_verifiers_come_and_go() -> None:
    first, second = Seen("a", info(), 100.0), Seen("b", info(tokens=50))
    world = World([first])
    world.tick()
    world.verifiers.append(second)
    world.tell(first, info(tokens=3))
    world.tick()
    assert set(last_of(world)) == {"a"}
    world.tell(second, info(tokens=58))
    first.problem = "no connection"
    world.tell(first, info(tokens=9))
    world.tick()
    assert set(last_of(world)) == {"b"}
    world.verifiers.remove(second)
    first.problem = ""
    world.tell(first, info(tokens=10))
    world.tick()
    # What it did while it could not be asked is told when it is back, over all that time.
    assert last_of(world)["a"]["generation_tokens"] == 7
    assert last_of(world)["a"]["dt"] == 2.0


async def test_no_verifier_at_all_is_a_snapshot_too() -> None:
    world = World([])
    world.tick()
    told = await upcoming(world.feed.listen())
    assert told["verifiers"] == []
    assert told["running"] == []
