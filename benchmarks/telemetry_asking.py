"""Asks a running `outrider serve` in one mode or the other: traced requests or untraced ones.

Knows HTTP, `traceparent` and what a turn is made of; does not know in which order turns come.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import TracebackType
from typing import Any

import httpx

from benchmarks.outrider_system import (
    REQUEST_SECONDS,
    ServerFailed,
    completion_body,
    join_answers,
)
from benchmarks.processor_time import Reading
from benchmarks.systems import Answer, Work, digest
from benchmarks.telemetry_turns import Turn
from outrider.errors import OperationError

TRACE_ID_HEADER = "x-trace-id"
# A span waits for a second at most, its record for another one before it is written.
LEAD_SECONDS = 2.5
EVIDENCE_SECONDS = 15.0
EVIDENCE_PAUSE_SECONDS = 0.5


class Asker:
    """One server at `url`, asked by up to `clients` clients. `traced` counts traced requests."""

    def __init__(self, url: str, clients: int) -> None:
        self.traced = 0
        self._numbers = itertools.count(1)
        self._client = httpx.Client(base_url=url, timeout=REQUEST_SECONDS)
        self._pool = ThreadPoolExecutor(clients)

    def __enter__(self) -> Asker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def answer(self, work: Work, traced: bool) -> Answer:
        """All of `work` at once. Raises ServerFailed, OperationError if the mode was another."""
        requests = []
        for index in range(len(work.prompts)):
            number = next(self._numbers)
            # A salt of its own: nothing answered before may help.
            requests.append((completion_body(work, index, {}, f"cold-{number}"), number))
        self.traced += len(requests) if traced else 0
        began = time.perf_counter()
        answers = list(self._pool.map(lambda one: self._post(one[0], one[1], traced), requests))
        return join_answers(time.perf_counter() - began, answers)

    def lead(self, works: Sequence[Work], traced: bool) -> None:
        """Ask what is not counted, until nothing is left of what was asked before."""
        until = time.monotonic() + LEAD_SECONDS
        for work in itertools.cycle(works):
            self.answer(work, traced)
            if time.monotonic() >= until:
                return

    def turn(
        self,
        works: Sequence[Work],
        traced: bool,
        quad: int,
        read: Callable[[], Reading],
        cores: int,
    ) -> Turn:
        """One window for each of `works`."""
        readings = [read()]
        answers = []
        for work in works:
            answers.append(self.answer(work, traced))
            readings.append(read())
        return Turn(
            clients=works[0].at_once,
            quad=quad,
            traced=traced,
            seconds=tuple(answer.seconds for answer in answers),
            tokens=tuple(answer.new_tokens for answer in answers),
            rounds=tuple(answer.steps for answer in answers),
            answers=tuple(
                digest([token for output in answer.outputs for token in output])
                for answer in answers
            ),
            foreign=tuple(
                later.foreign_since(earlier, cores) for earlier, later in pairwise(readings)
            ),
            processor_ms=readings[-1].since(readings[0], cores),
        )

    def received(self) -> int:
        """Traced requests in the gateway's evidence, once all are there or time is up."""
        until = time.monotonic() + EVIDENCE_SECONDS
        while True:
            response = self._client.get("/v1/acceptance")
            if response.status_code != 200:
                raise ServerFailed(f"HTTP {response.status_code}: {response.text[:500]}")
            found = int(response.json()["totals"]["requests"])
            if found >= self.traced or time.monotonic() >= until:
                return found
            time.sleep(EVIDENCE_PAUSE_SECONDS)

    def _post(self, body: dict[str, Any], number: int, traced: bool) -> dict[str, Any]:
        parent = f"00-{number:032x}-{number:016x}-{traced:02x}"
        response = self._client.post("/v1/completions", json=body, headers={"traceparent": parent})
        if response.status_code != 200:
            raise ServerFailed(f"HTTP {response.status_code}: {response.text[:500]}")
        if (TRACE_ID_HEADER in response.headers) is not traced:
            raise OperationError(
                f"the server traced a request that was {'' if traced else 'not '}sampled as if it "
                f"was{' not' if traced else ''}; is it `--trace-level none`?"
            )
        answer: dict[str, Any] = response.json()
        return answer
