"""The parts together: own spans, a stop that waits, TLS, and what is imported late."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.evidence import evidence as module
from gateway.evidence.evidence import Evidence
from gateway.evidence.filters import AcceptanceQuery
from gateway.evidence.settings import EvidenceSettings
from outrider.credentials import PLAIN, Credentials
from outrider.errors import InputError
from outrider.otlp import OtlpEndpoint
from tests.certificates import Authority
from tests.gateway.evidence.otlp import export_of, record, request_span

WAIT_S = 20.0


async def export(address: str, *spans: Span) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = TraceServiceStub(channel)  # type: ignore[no-untyped-call]
        return await stub.Export(export_of(spans), timeout=WAIT_S)


async def test_a_stop_waits_for_spans_of_requests_that_have_just_ended(
    socket_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_S", WAIT_S)
    evidence = Evidence(EvidenceSettings(listen=socket_address))
    await evidence.start()
    delivery = evidence.delivery()
    assert await asyncio.to_thread(delivery.traces, export_of([Span(name="chat toy")]))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(evidence.stop())
    await asyncio.sleep(0)
    await export(socket_address, request_span(record({})))
    assert evidence.aggregate.totals.requests == 1
    assert not stopping.done()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    monkeypatch.setattr(module, "LINGER_S", 0.0)
    await evidence.stop()


async def test_a_stop_without_requests_waits_for_nothing(
    socket_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = Evidence(EvidenceSettings(listen=socket_address))
    await evidence.start()

    async def never(seconds: float) -> None:
        assert seconds == 0.0

    with monkeypatch.context() as patch:
        patch.setattr(module.asyncio, "sleep", never)
        await evidence.stop()


async def test_what_is_stored_is_asked_for_after_a_restart(tmp_path: Path) -> None:
    settings = EvidenceSettings(database=str(tmp_path / "e.duckdb"))
    for number in (1, 2):
        evidence = Evidence(settings)
        await evidence.start()
        evidence.take(record({"ngram": [(2, 1)]}))
        answer = await evidence.acceptance(AcceptanceQuery())
        assert answer.totals.requests == number
        assert evidence.aggregate.totals.requests == 1
        await evidence.stop()


async def test_a_delivery_outlives_its_loop() -> None:
    def deliver() -> Any:
        async def make() -> Any:
            return Evidence(EvidenceSettings()).delivery()

        return asyncio.run(make())

    delivery = await asyncio.to_thread(deliver)
    assert not delivery.traces(export_of([]))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


async def sent(address: str, credentials: Credentials) -> bool:
    """Whether a verifier with these credentials gets a span there."""
    endpoint = OtlpEndpoint(address, credentials=credentials)
    endpoint.hurry()
    request = export_of([request_span(record({}))])
    try:
        return await asyncio.to_thread(endpoint.traces, request)
    finally:
        endpoint.close()


async def test_only_peers_with_a_certificate_are_heard(
    authority: Authority, tmp_path: Path
) -> None:
    evidence = Evidence(EvidenceSettings(listen="127.0.0.1:0"), authority.server(mutual=True))
    await evidence.start()
    try:
        stranger = Authority(tmp_path / "other")
        assert not await sent(evidence.address, PLAIN)
        assert not await sent(evidence.address, authority.client())
        assert not await sent(evidence.address, stranger.client(shows=stranger.issue("v")))
        assert evidence.aggregate.totals.requests == 0
        assert await sent(evidence.address, authority.client(shows=authority.issue("v")))
        assert evidence.aggregate.totals.requests == 1
    finally:
        await evidence.stop()


async def test_a_port_for_other_machines_needs_tls() -> None:
    evidence = Evidence(EvidenceSettings(listen="0.0.0.0:4317"))
    with pytest.raises(InputError, match=r"--otlp-listen: .* without TLS"):
        await evidence.start()
    await evidence.stop()


async def test_forwarding_speaks_tls(authority: Authority) -> None:
    upstream = Evidence(EvidenceSettings(listen="127.0.0.1:0"), authority.server())
    await upstream.start()
    evidence = Evidence(EvidenceSettings(forward=upstream.address), authority.client())
    await evidence.start()
    evidence.delivery().traces(export_of([request_span(record({}))]))
    deadline = time.monotonic() + WAIT_S
    while not upstream.aggregate.totals.requests:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)
    await evidence.stop()
    await upstream.stop()


def test_a_gateway_imports_none_of_it_before_it_is_needed() -> None:
    code = (
        "import sys, gateway.server, outrider.commands.gateway\n"
        "heavy = ('duckdb', 'numpy', 'opentelemetry', 'torch', 'rich')\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & set(heavy)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"
