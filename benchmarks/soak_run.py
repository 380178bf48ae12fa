"""One soak against a running server: probes, load, kills, re-runs, and what is left at the end.

Knows the order of things; requests, checks, comparisons and judgements are their own modules'.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from benchmarks.divergence import Target
from benchmarks.soak_answers import Answer
from benchmarks.soak_checks import breaches
from benchmarks.soak_clients import Clients
from benchmarks.soak_draw import Facts, Place, SoakRequest
from benchmarks.soak_kinds import KINDS
from benchmarks.soak_leaks import AtEnd, Trend, peaks, trend
from benchmarks.soak_replay import compare, plain, replayable
from benchmarks.soak_requests import RequestFactory, probe
from benchmarks.soak_server import SoakedServer
from benchmarks.soak_tally import Tally
from benchmarks.soak_watch import MEASURES, kill

# What a server says of a field that it knows and cannot serve.
NOT_OFFERED = "is not supported yet"


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """`kill_seconds` is the mean time between kills, 0 for none; `hang_seconds` bounds a request.

    Every `replay_every`-th completed seeded answer is re-run.
    """

    seconds: float = 600.0
    clients: int = 32
    seed: int = 1
    kill_seconds: float = 6.0
    replay_every: int = 50
    hang_seconds: float = 300.0
    sample_seconds: float = 1.0


@dataclass(slots=True)
class SoakResult:
    """What one soak found. `missing` are (kind, place) pairs the server does not offer."""

    tally: Tally
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    missing: list[tuple[str, Place]] = field(default_factory=list)
    trends: list[Trend] = field(default_factory=list)
    at_end: list[AtEnd] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    off_reasons: dict[str, int] = field(default_factory=dict)


# Called at every sample with the seconds gone and the result so far.
Progress = Callable[[float, SoakResult], None]


class Soak:
    """Loads `server`; `target` is the plain model that judges differences."""

    def __init__(
        self, server: SoakedServer, settings: SoakSettings, target: Target, progress: Progress
    ) -> None:
        self._server = server
        self._settings = settings
        self._target = target
        self._progress = progress
        self._result = SoakResult(Tally())
        self._numbers = count()
        self._completed = 0

    async def run(self) -> SoakResult:
        """Raises ServerFailed where the server is not fit for a soak."""
        server, result = self._server, self._result
        facts = await server.facts()
        async with self._clients() as clients:
            result.missing = await self._probe(clients, facts)
        held = [one for one in await server.settled() if not one.passed]
        result.at_end = [replace(one, what=f"after the probes: {one.what}") for one in held]
        idle = server.descriptors()
        async with self._clients() as clients:
            factory = RequestFactory(self._settings.seed, facts, result.missing)
            result.seconds = await self._load(clients, factory)
        result.at_end += [*await server.settled(), *server.lost(idle)]
        result.trends = self._trends(result.seconds)
        result.totals = await server.totals()
        result.off_reasons = await server.off_reasons()
        return result

    def _trends(self, seconds: float) -> list[Trend]:
        watch, trends = self._server.watch, []
        for name in self._server.names():
            for measure in MEASURES:
                points = watch.series[name, measure]
                if len(watch.pids[name]) > 1:
                    points = peaks(points)
                trends.append(trend(name, measure, points, seconds))
        return trends

    def _clients(self) -> Clients:
        connections = self._settings.clients + 2
        server = self._server
        return Clients(server.url, server.verifier, self._settings.hang_seconds, connections)

    async def _probe(self, clients: Clients, facts: Facts) -> list[tuple[str, Place]]:
        """Ask once for each kind at each place; those that are refused as not offered."""
        places = [
            (kind.name, place)
            for kind in KINDS
            for place in sorted(kind.places, key=lambda place: place.value)
        ]
        room = asyncio.Semaphore(self._settings.clients)

        async def offered(kind: str, place: Place) -> bool:
            async with room:
                request = probe(kind, place, facts)
                answer = await clients.send(request)
            if answer.status in (400, 501) and NOT_OFFERED in answer.message:
                return False
            self._take(request, answer)
            self._progress(0.0, self._result)
            return True

        found = await asyncio.gather(*(offered(*one) for one in places))
        return [one for one, is_offered in zip(places, found, strict=True) if not is_offered]

    async def _load(self, clients: Clients, factory: RequestFactory) -> float:
        """All clients until the time is over; the seconds it took."""
        started = time.monotonic()
        until = started + self._settings.seconds
        beside = [
            asyncio.create_task(self._kill_proposers()),
            asyncio.create_task(self._sample(started)),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._settings.clients):
                    group.create_task(self._client(clients, factory, until))
        finally:
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        return time.monotonic() - started

    async def _client(self, clients: Clients, factory: RequestFactory, until: float) -> None:
        while time.monotonic() < until:
            request = factory.request(next(self._numbers))
            answer = await clients.send(request)
            if not self._take(request, answer) or not replayable(request, answer):
                continue
            self._completed += 1
            if self._completed % self._settings.replay_every == 0:
                await self._replay(clients, request, answer)

    def _take(self, request: SoakRequest, answer: Answer) -> bool:
        """Count an outcome; whether it was as it should be."""
        found = breaches(request, answer)
        self._result.tally.add(request, answer, found)
        return not found

    async def _replay(self, clients: Clients, request: SoakRequest, answer: Answer) -> None:
        twin = plain(request)
        again = await clients.send(twin)
        if wrong := breaches(twin, again):
            self._result.tally.fail(f"plain re-run: {'; '.join(wrong)}", twin, again)
            return
        replays = await asyncio.to_thread(compare, request, answer, again, self._target)
        self._result.tally.add_replays(request, answer, replays)

    async def _kill_proposers(self) -> None:
        """kill -9 of a proposer at random moments; `serve` starts it again."""
        rng = random.Random(self._settings.seed)
        mean = self._settings.kill_seconds
        while mean > 0:
            await asyncio.sleep(mean * rng.uniform(0.5, 1.5))
            alive = self._server.proposers()
            if alive and kill(victim := rng.choice(alive)):
                self._result.kills[victim.name] += 1

    async def _sample(self, started: float) -> None:
        while True:
            at = time.monotonic() - started
            self._server.watch.sample(at)
            self._progress(at, self._result)
            await asyncio.sleep(self._settings.sample_seconds)
