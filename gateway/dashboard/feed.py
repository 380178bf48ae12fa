"""The live feed: one snapshot a second, made once for all who listen, and ten minutes of samples.

Knows the verifiers' last answers and which requests run; asks nobody anything itself. What a
snapshot and a sample hold is snapshot.py's and sample.py's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any, Final

from speculation.v1 import verifier_pb2 as pb

from gateway import sse
from gateway.dashboard.running import RunningRequests
from gateway.dashboard.sample import sample
from gateway.dashboard.snapshot import verifier_object
from gateway.errors import ApiError
from gateway.routing import VerifierPool

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
HISTORY_SAMPLES: Final = 600
MAX_LISTENERS: Final = 100


class LiveFeed:
    """Must be started and closed on one event loop.

    `interval_s` is the time between snapshots, `history` the number of samples kept. `monotonic`
    and `wall` are clocks in seconds.
    """

    def __init__(
        self,
        pool: VerifierPool,
        running: RunningRequests,
        *,
        interval_s: float = INTERVAL_S,
        history: int = HISTORY_SAMPLES,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._running = running
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._wall = wall
        self._samples: deque[dict[str, Any]] = deque(maxlen=history)
        self._number = 0
        self._seen: dict[str, tuple[pb.GetInfoResponse, float]] = {}
        self._frame: tuple[int, bytes] = (-1, b"")
        self._changed = asyncio.Event()
        self._closed = False
        self._listeners = 0
        self._ticking: asyncio.Task[None] | None = None

    @property
    def listeners(self) -> int:
        """How many are told of each snapshot."""
        return self._listeners

    def start(self) -> None:
        """Take the first snapshot now, and one every interval from here on."""
        self.tick()
        self._ticking = asyncio.create_task(self._tick_for_ever())

    async def close(self) -> None:
        """End all listeners' streams. Idempotent."""
        self._closed = True
        self._changed.set()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    def tick(self) -> None:
        """Take one sample of what the verifiers said since the last, and wake the listeners."""
        self._samples.append({"t": round(self._wall(), 3), "verifiers": self._taken()})
        self._number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def listen(self) -> AsyncIterator[bytes]:
        """Server-sent events: a snapshot with the history at once, then each as it is made.

        A listener that reads too slowly gets the samples that it missed with its next snapshot.
        Raises ApiError 429 where too many listen already.
        """
        if self._listeners >= MAX_LISTENERS:
            raise ApiError(
                429, f"{self._listeners} clients read the live feed already; none more is taken"
            )
        return self._frames()

    async def _frames(self) -> AsyncIterator[bytes]:
        self._listeners += 1
        told = self._number - len(self._samples)
        first = True
        try:
            while not self._closed:
                changed = self._changed
                missed = self._number - told
                if first or missed > 1:
                    yield self._with_history(missed)
                elif missed == 1:
                    yield self._shared_frame()
                told += missed
                first = False
                if told == self._number:
                    await changed.wait()
        finally:
            self._listeners -= 1

    def _shared_frame(self) -> bytes:
        """The newest snapshot, encoded once however many listen."""
        if self._frame[0] != self._number:
            self._frame = (self._number, sse.event(self._snapshot()))
        return self._frame[1]

    def _with_history(self, count: int) -> bytes:
        """The newest snapshot with the last `count` samples, oldest first."""
        kept = len(self._samples)
        history = list(islice(self._samples, max(kept - count, 0), kept))
        return sse.event({**self._snapshot(), "history": history})

    def _snapshot(self) -> dict[str, Any]:
        return {
            "object": "live",
            "time": self._samples[-1]["t"],
            "interval_s": self._interval_s,
            "verifiers": [verifier_object(v) for v in self._pool.verifiers],
            "running_total": len(self._running),
            "running": self._running.shown(self._monotonic()),
            "sample": self._samples[-1],
        }

    def _taken(self) -> dict[str, Any]:
        """What each verifier that answered since the last tick has added, by its address.

        The first answer of a verifier is where counting begins: what it did before is history that
        nobody here has seen.
        """
        present = {v.address: v for v in self._pool.verifiers}
        self._seen = {a: seen for a, seen in self._seen.items() if a in present}
        samples: dict[str, Any] = {}
        for address, verifier in present.items():
            if verifier.info is None or verifier.problem:
                continue
            before = self._seen.get(address)
            if before is not None and before[0] is verifier.info:
                continue
            self._seen[address] = (verifier.info, verifier.info_at)
            if before is not None:
                seconds = max(verifier.info_at - before[1], 1e-3)
                samples[address] = sample(before[0], verifier.info, seconds)
        return samples

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                self.tick()
            except Exception:
                # A page that stands still must not take requests with it; the log has the reason.
                logger.exception("the live feed missed a snapshot")
