"""Messages reach another collector as they were, or are dropped and counted; nobody waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from gateway.evidence.counts import EvidenceCounts
from gateway.evidence.evidence import Evidence
from gateway.evidence.forwarder import (
    MAX_EXHAUSTED,
    METRICS_METHOD,
    TRACES_METHOD,
    Forwarder,
)
from gateway.evidence.settings import EvidenceSettings
from outrider.backoff import Backoff
from tests.gateway.evidence.otlp import export_of, metrics_of, record, request_span

WAIT_S = 20.0


class Collector:
    """An OTLP service that keeps what it gets and answers with `status`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.got: list[tuple[str, bytes]] = []
        self.status = grpc.StatusCode.OK
        self.too_large: int | None = None
        self.calls = 0
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        server = grpc.aio.server()
        for method in (TRACES_METHOD, METRICS_METHOD):
            _, service, name = method.split("/")
            handler = grpc.unary_unary_rpc_method_handler(self._method(method))
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {name: handler}),)
            )
        server.add_insecure_port(self.address)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def wait_for(self, calls: int) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: self.calls >= calls)

    def _method(self, method: str) -> Any:
        async def export(message: bytes, context: Any) -> bytes:
            async with self._changed:
                self.calls += 1
                self._changed.notify_all()
            if self.status is not grpc.StatusCode.OK:
                await context.abort(self.status, "not now")
            if self.too_large is not None and len(message) > self.too_large:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max")
            self.got.append((method, message))
            return b""

        return export


class Scene:
    def __init__(self, address: str, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.collector = Collector(address)
        self.forwarder = Forwarder(
            address,
            EvidenceCounts(self.registry),
            backoff=Backoff(0.001, 0.01),
            **options,
        )

    def count(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"outrider:evidence_{name}_total", labels)
        return value or 0.0


@pytest.fixture
async def scene(socket_address: str) -> AsyncIterator[Scene]:
    made = Scene(socket_address)
    yield made
    await made.forwarder.stop()
    await made.collector.stop()


async def test_messages_arrive_as_they_were_and_in_order(scene: Scene) -> None:
    await scene.collector.start()
    scene.forwarder.start()
    sent = [(TRACES_METHOD, b"one"), (METRICS_METHOD, b"two"), (TRACES_METHOD, b"three")]
    for method, message in sent:
        scene.forwarder.put(method, message)
    await scene.collector.wait_for(3)
    assert scene.collector.got == sent


async def test_a_collector_that_is_away_gets_them_later(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        scene.forwarder.start()
        for message in (b"one", b"two"):
            scene.forwarder.put(TRACES_METHOD, message)
        async with asyncio.timeout(WAIT_S):
            while "UNAVAILABLE" not in caplog.text:
                await asyncio.sleep(0.002)
        await scene.collector.start()
        await scene.collector.wait_for(2)
        await scene.forwarder.stop()
    assert [message for _, message in scene.collector.got] == [b"one", b"two"]
    assert caplog.text.count("UNAVAILABLE: ") == 1
    assert caplog.text.count("takes evidence again") == 1
    assert scene.count("forwarded") == 2


async def test_one_that_is_busy_is_asked_again(scene: Scene) -> None:
    scene.collector.status = grpc.StatusCode.RESOURCE_EXHAUSTED
    await scene.collector.start()
    scene.forwarder.start()
    scene.forwarder.put(TRACES_METHOD, b"one")
    await scene.collector.wait_for(3)
    scene.collector.status = grpc.StatusCode.OK
    await scene.collector.wait_for(4)
    await scene.forwarder.stop()
    assert scene.collector.got == [(TRACES_METHOD, b"one")]


async def test_a_message_that_is_too_large_there_holds_up_no_other(scene: Scene) -> None:
    scene.collector.too_large = 4
    await scene.collector.start()
    scene.forwarder.start()
    for message in (b"large", b"two", b"larger", b"four"):
        scene.forwarder.put(TRACES_METHOD, message)
    await scene.collector.wait_for(2 * MAX_EXHAUSTED + 2)
    await scene.forwarder.stop()
    assert [message for _, message in scene.collector.got] == [b"two", b"four"]
    assert scene.count("forward_dropped", reason="refused") == 2


async def test_what_is_refused_for_good_is_dropped(scene: Scene) -> None:
    scene.collector.status = grpc.StatusCode.INVALID_ARGUMENT
    await scene.collector.start()
    scene.forwarder.start()
    for _ in range(3):
        scene.forwarder.put(TRACES_METHOD, b"one")
    await scene.collector.wait_for(3)
    await scene.forwarder.stop()
    assert scene.collector.calls == 3
    assert scene.count("forward_dropped", reason="refused") == 3


async def test_a_full_queue_drops_its_oldest(socket_address: str) -> None:
    scene = Scene(socket_address, max_messages=3, max_bytes=10)
    for message in (b"1", b"2", b"3", b"4", b"55555555", b"too large for it"):
        scene.forwarder.put(TRACES_METHOD, message)
    assert scene.count("forward_dropped", reason="queue_full") == 2
    assert scene.count("forward_dropped", reason="too_large") == 1
    await scene.collector.start()
    scene.forwarder.start()
    await scene.collector.wait_for(3)
    assert [message for _, message in scene.collector.got] == [b"3", b"4", b"55555555"]
    await scene.forwarder.stop()
    await scene.collector.stop()


async def test_stopping_does_not_wait_for_a_dead_collector(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.evidence.forwarder._STOP_S", 0.01)
    scene.forwarder.start()
    for _ in range(2):
        scene.forwarder.put(TRACES_METHOD, b"one")
    await scene.forwarder.stop()
    assert scene.count("forward_dropped", reason="stopped") == 2


async def test_a_gateway_passes_on_what_it_receives_and_what_it_traces(
    socket_address: str,
) -> None:
    listen = socket_address + ".in"
    collector = Collector(socket_address)
    await collector.start()
    evidence = Evidence(EvidenceSettings(listen=listen, forward=socket_address))
    await evidence.start()
    told = record({})
    traces = export_of([request_span(told)]).SerializeToString()
    metrics = metrics_of({"other": 1})
    async with grpc.aio.insecure_channel(listen) as channel:
        export = channel.unary_unary(
            TRACES_METHOD, request_serializer=None, response_deserializer=None
        )
        await export(traces, timeout=WAIT_S)
    delivery = evidence.delivery()
    assert await asyncio.to_thread(delivery.metrics, metrics)
    own = export_of([request_span(record({}))])
    assert await asyncio.to_thread(delivery.traces, own)
    await collector.wait_for(3)
    await evidence.stop()
    assert collector.got == [
        (TRACES_METHOD, traces),
        (METRICS_METHOD, metrics.SerializeToString()),
        (TRACES_METHOD, own.SerializeToString()),
    ]
    first, _ = evidence.recent.all()
    assert first.request_id == told.request_id
    await collector.stop()
