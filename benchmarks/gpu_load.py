"""Outrider over HTTP from many clients at once, on one event loop.

Knows the completions endpoint. Bodies are encoded before the clock starts and answers decoded
after it has stopped, each client keeps a connection of its own, and how much of a core the
clients took is reported: at 128 clients the load must not be what is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import httpx

from benchmarks.gpu_readings import difference, times
from benchmarks.outrider_system import (
    REQUEST_SECONDS,
    ServerFailed,
    completion_body,
    join_answers,
)
from benchmarks.steady import Span, steady
from benchmarks.systems import Answer, Work

CLIENT_CPU = "client_cpu_share"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_JSON = {"Content-Type": "application/json"}
_DATA, _DONE = b"data: ", b"[DONE]"


@dataclass(frozen=True, slots=True)
class Sent:
    """Answers as bytes and their spans, in the bodies' order.

    `cpu_seconds` is what this process used meanwhile.
    """

    seconds: float
    cpu_seconds: float
    answers: tuple[bytes, ...]
    spans: tuple[Span, ...]


class Clients:
    """A context with any number of HTTP clients of one server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._clients: list[httpx.AsyncClient] = []

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def send(self, bodies: Sequence[bytes], clients: int) -> Sent:
        """Post all bodies; each of `clients` takes the next as soon as it is answered.

        Raises ServerFailed for any answer but a 200.
        """
        return self._runner.run(self._send(bodies, clients))

    def metrics(self) -> str:
        """The server's Prometheus text."""
        return self._runner.run(self._metrics())

    def _some(self, count: int) -> list[httpx.AsyncClient]:
        while len(self._clients) < count:
            # One connection each: a shared pool searches all its connections for every request.
            transport = httpx.AsyncHTTPTransport(
                verify=False, limits=httpx.Limits(max_connections=1)
            )
            self._clients.append(
                httpx.AsyncClient(
                    base_url=self._url,
                    transport=transport,
                    timeout=REQUEST_SECONDS,
                    trust_env=False,
                )
            )
        return self._clients[:count]

    async def _send(self, bodies: Sequence[bytes], count: int) -> Sent:
        clients = self._some(min(count, len(bodies)))
        # Connections are opened before the clock starts.
        await _all(client.get("/health") for client in clients)
        answers: list[bytes] = [b""] * len(bodies)
        spans = [Span(0.0, 0.0)] * len(bodies)
        pending = iter(enumerate(bodies))
        cpu, started = time.process_time(), time.perf_counter()

        async def work(client: httpx.AsyncClient) -> None:
            for index, body in pending:
                sent = time.perf_counter() - started
                answers[index] = await _post(client, body)
                spans[index] = Span(sent, time.perf_counter() - started)

        await _all(work(client) for client in clients)
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
        return Sent(seconds, used, tuple(answers), tuple(spans))

    async def _metrics(self) -> str:
        (client,) = self._some(1)
        try:
            response = await client.get("/metrics")
        except httpx.TransportError as error:
            raise ServerFailed(f"GET /metrics: {error!r}") from error
        if response.status_code != 200:
            raise ServerFailed(f"GET /metrics: HTTP {response.status_code}")
        return response.text

    async def _close(self) -> None:
        for client in self._clients:
            await client.aclose()


async def _post(client: httpx.AsyncClient, body: bytes) -> bytes:
    """The whole answer. Raises ServerFailed for any but a 200."""
    response = await client.post("/v1/completions", content=body, headers=_JSON)
    if response.status_code != 200:
        raise ServerFailed(f"HTTP {response.status_code}: {response.text[:500]}")
    return response.content


async def _all(coroutines: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Await all; the first failure ends the others. Raises ServerFailed for lost connections."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except httpx.TransportError as error:
        raise ServerFailed(f"the connection failed: {error!r}") from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LoadSystem:
    """One way to ask the server; `speculation` is the requests' `speculative_decoding` object.

    With `stream` answers come as server-sent events, read whole before they are looked at.

    Every request carries a cache salt of its own: neither the prompt cache nor the suffix
    proposer's memory of earlier answers helps it.
    """

    _salts = itertools.count()

    def __init__(
        self, clients: Clients, speculation: dict[str, Any], *, stream: bool = False
    ) -> None:
        self._clients = clients
        self._more = STREAM if stream else {}
        self._read: Callable[[bytes], dict[str, Any]] = read_stream if stream else json.loads
        self._speculation = speculation

    def generate(self, work: Work) -> Answer:
        bodies = [
            json.dumps(
                completion_body(work, i, self._speculation, f"cold-{next(self._salts)}")
                | self._more
            ).encode()
            for i in range(len(work.prompts))
        ]
        before = times(self._clients.metrics())
        sent = self._clients.send(bodies, work.at_once)
        after = times(self._clients.metrics())
        answer = join_answers(sent.seconds, [self._read(body) for body in sent.answers])
        counts = [len(output) for output in answer.outputs]
        part = steady(sent.spans, counts, work.at_once, sent.seconds)
        share = {CLIENT_CPU: sent.cpu_seconds / sent.seconds}
        return replace(
            answer,
            steady_seconds=part.seconds,
            steady_tokens=part.tokens,
            readings={**share, **difference(before, after)},
        )


def read_stream(body: bytes) -> dict[str, Any]:
    """A completion's whole object, of the events of its stream. Raises ServerFailed for an error.

    The last event before the end carries usage and metrics, as `STREAM` asks for.
    """
    token_ids: list[int] = []
    last: dict[str, Any] = {}
    for line in body.splitlines():
        text = line.removeprefix(_DATA)
        if text in (line, _DONE):
            continue
        last = json.loads(text)
        if "error" in last:
            raise ServerFailed(f"the stream ended with {last['error']}")
        for choice in last["choices"]:
            token_ids += choice.get("token_ids") or []
    if last.get("usage") is None:
        raise ServerFailed("the stream ended without its usage")
    return {**last, "choices": [{"token_ids": token_ids}]}
