"""`/v1/acceptance` and `/v1/requests` over HTTP, from OTLP that was sent to the gateway."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from gateway.evidence import routes
from gateway.evidence.queries import where_literal
from gateway.evidence.records import RequestRecord, RoundRecord
from gateway.evidence.settings import EvidenceSettings
from gateway.server import RunningGateway
from outrider.errors import InputError
from tests.gateway.conftest import StartGateway
from tests.gateway.evidence.otlp import SECOND, export_of, metrics_of, record, request_span
from tests.gateway.evidence.test_spans import ROUNDS
from tests.gateway.fake_verifier import FakeVerifier

WAIT_S = 20.0
NOW = time.time_ns()


@dataclass
class Scene:
    gateway: RunningGateway
    http: httpx.AsyncClient

    async def send(self, *records: RequestRecord) -> None:
        async with grpc.aio.insecure_channel(self.gateway.evidence.address) as channel:
            stub: Any = TraceServiceStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.Export(export_of(map(request_span, records)), timeout=WAIT_S)
        assert answer.partial_success.rejected_spans == 0

    async def get(self, path: str, **parameters: Any) -> Any:
        response = await self.http.get(path, params=parameters)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(params=["file", "memory"])
async def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    socket_dir: Path,
    verifier: FakeVerifier,
    start_gateway: StartGateway,
) -> AsyncIterator[Scene]:
    database = str(tmp_path / "e.duckdb") if request.param == "file" else "memory"
    settings = EvidenceSettings(listen=f"unix:{socket_dir}/otlp.sock", database=database)
    gateway = await start_gateway(verifier.address, evidence=settings)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=WAIT_S, trust_env=False) as http:
        yield Scene(gateway, http)


def at(seconds_ago: float, steps: Any = None, **changes: Any) -> RequestRecord:
    ended = NOW - round(seconds_ago * SECOND)
    return record(steps or {}, ended_ns=ended, started_ns=ended - SECOND, **changes)


async def test_acceptance_as_the_contract_says(scene: Scene) -> None:
    await scene.send(
        at(1, {"ngram": [(4, 2), (2, 2)]}, workload="code", completion_tokens=9),
        at(2, {"suffix": [(1, 0)]}, completion_tokens=3),
        at(7200),
    )
    body = await scene.get("/v1/acceptance", group_by="proposer,method", since="1h")
    assert body["object"] == "acceptance"
    assert body["group_by"] == ["proposer", "method"]
    assert body["since"] == pytest.approx(time.time() - 3600, abs=60)
    assert body["until"] == pytest.approx(time.time(), abs=60)
    assert body["data"][0] == {
        "group": {"proposer": "ngram", "method": "ngram"},
        "requests": 1,
        "completion_tokens": 9,
        "num_spec_steps": 2,
        "num_draft_tokens": 6,
        "num_accepted_draft_tokens": 4,
        "mean_acceptance_length": 3.0,
        "draft_acceptance_rate": 4 / 6,
        "acceptance_histogram": [0, 0, 2],
        "accepted_per_position": [2, 2, 0, 0],
        "proposed_per_position": [2, 2, 1, 1],
    }
    assert [row["group"]["proposer"] for row in body["data"]] == ["ngram", "suffix"]
    assert body["totals"]["requests"] == 2
    assert body["totals"]["completion_tokens"] == 12
    assert body["dropped"] == {}
    assert body["sampling_ratio"] == 1.0
    whole = await scene.get("/v1/acceptance")
    assert whole["totals"]["requests"] == 3
    assert whole["data"][0] == {"group": {}, **whole["totals"]}
    none = await scene.get("/v1/acceptance", group_by="proposer", until="1h")
    assert [row["group"] for row in none["data"]] == [{"proposer": None}]


async def test_groups_of_time(scene: Scene) -> None:
    await scene.send(*(at(ago, {"n": [(1, 1)]}) for ago in (1, 2, 301, 302, 303)))
    body = await scene.get("/v1/acceptance", group_by="time", interval="10s")
    rows = [(row["group"]["time"], row["requests"]) for row in body["data"]]
    expected: dict[int, int] = {}
    for ago in (303, 302, 301, 2, 1):
        moment = (NOW - ago * SECOND) // (10 * SECOND) * 10
        expected[moment] = expected.get(moment, 0) + 1
    assert rows == list(expected.items())


async def test_nothing_is_an_answer_too(scene: Scene) -> None:
    body = await scene.get("/v1/acceptance", group_by="proposer,position")
    assert body["data"] == []
    assert body["totals"]["requests"] == 0
    assert body["totals"]["mean_acceptance_length"] == 1.0
    assert body["since"] is None
    assert (await scene.get("/v1/requests")) == {
        "object": "list",
        "data": [],
        "has_more": False,
        "last_id": None,
    }


async def test_requests_page_by_page(scene: Scene) -> None:
    sent = [at(ago, {"n": [(2, 1)]}, request_id=f"r/{ago}") for ago in range(5)]
    await scene.send(*sent)
    first = await scene.get("/v1/requests", limit=2)
    assert [one["request_id"] for one in first["data"]] == ["r/0", "r/1"]
    assert first["has_more"]
    rest = await scene.get("/v1/requests", before=first["last_id"])
    assert [one["request_id"] for one in rest["data"]] == ["r/2", "r/3", "r/4"]
    assert not rest["has_more"]
    assert [one["request_id"] for one in (await scene.get("/v1/requests", before="r/3"))["data"]]
    assert "rounds" not in first["data"][0]


async def test_a_request_with_its_rounds(scene: Scene) -> None:
    told = at(1, {"ngram": [(3, 2)]}, rounds=ROUNDS, request_id="a/b c")
    await scene.send(told)
    body = await scene.get(f"/v1/requests/{told.span_id}")
    assert body == await scene.get("/v1/requests/a%2Fb%20c")
    assert body["num_draft_tokens"] == 3
    assert body["duration_ms"] == 1000.0
    assert body["off"] == {"prefill": 1}
    assert body["proposers"][0]["acceptance_histogram"] == [0, 0, 1, 0, 0]
    assert body["rounds"][0]["off_reason"] == "prefill"
    assert "draft_texts" not in body["rounds"][0]
    assert body["rounds"][1]["draft_texts"] == ["a", "\x00", "🙂"]
    response = await scene.http.get("/v1/requests/nobody")
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "request_id"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/acceptance?since=yesterday", "since"),
        ("/v1/acceptance?group_by=colour", "group_by"),
        ("/v1/acceptance?colour=red", "colour"),
        ("/v1/acceptance?limit=3", "limit"),
        ("/v1/requests?limit=0", "limit"),
        ("/v1/requests?limit=1001", "limit"),
        ("/v1/requests?limit=ten", "limit"),
        ("/v1/requests?limit=" + "1" * 5000, "limit"),
        ("/v1/requests?limit=0000000011000", "limit"),
        ("/v1/acceptance?temperature=0.7", "temperature"),
        ("/v1/requests?before=nobody", "before"),
        ("/v1/acceptance/export?format=xml", "format"),
        ("/v1/acceptance/export?rows=all", "rows"),
    ],
)
async def test_a_wrong_question_is_a_400(scene: Scene, path: str, field: str) -> None:
    response = await scene.http.get(path)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "BadRequestError"
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: ")


@pytest.mark.parametrize("rows", ["requests", "proposers", "rounds"])
async def test_export(scene: Scene, rows: str, tmp_path: Path) -> None:
    one = at(1, {"ngram": [(3, 2)], "suffix": [(1, 1)]}, rounds=ROUNDS, workload="it's")
    await scene.send(one, at(2), at(7200, {"ngram": [(1, 1)]}))
    expected = {"requests": 2, "proposers": 3, "rounds": 2}[rows]
    parameters = {"rows": rows, "since": "1h"}
    response = await scene.http.get("/v1/acceptance/export", params=parameters)
    assert response.status_code == 200
    assert f"outrider-{rows}.parquet" in response.headers["content-disposition"]
    path = tmp_path / "export.parquet"
    path.write_bytes(response.content)
    parquet = duckdb.sql(f"SELECT * FROM '{path}'").fetchall()
    assert len(parquet) == expected
    text = await scene.http.get("/v1/acceptance/export", params={**parameters, "format": "csv"})
    assert text.headers["content-type"] == "text/csv; charset=utf-8"
    (tmp_path / "export.csv").write_text(text.text.replace("\x00", "?"))
    table = duckdb.sql(f"SELECT * FROM read_csv('{tmp_path}/export.csv', header=true)")
    assert len(table.fetchall()) == expected
    filtered = {**parameters, "workload": "it's", "proposer": "suffix"}
    some = await scene.http.get("/v1/acceptance/export", params={**filtered, "format": "csv"})
    assert len(some.text.splitlines()) > 1
    assert one.span_id in some.text


async def test_exports_have_their_limit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_EXPORTS", 0)
    response = await scene.http.get("/v1/acceptance/export")
    assert response.status_code == 429


async def test_an_export_that_finds_no_room_is_told_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.send(at(1))
    await scene.get("/v1/acceptance")
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def disk_is_full(*arguments: Any) -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
        return where_literal(*arguments)

    monkeypatch.setattr("gateway.evidence.export.where_literal", disk_is_full)
    try:
        full = await scene.http.get("/v1/acceptance/export")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    missing = await scene.http.get("/v1/acceptance/export")
    monkeypatch.undo()
    for response in (full, missing):
        assert response.status_code == 503
        assert "temporary folder cannot take this export" in response.json()["error"]["message"]
    assert caplog.text.count("the export cannot be written to a temporary file in ") == 2
    # The file is none the worse for it.
    assert (await scene.http.get("/v1/acceptance/export")).status_code == 200


async def test_metrics_and_health_tell_of_it(scene: Scene) -> None:
    await scene.send(at(1))
    await scene.get("/v1/acceptance")
    text = (await scene.http.get("/metrics")).text
    assert 'outrider:evidence_spans_total{kind="request"} 1.0' in text
    kind = (await scene.get("/health"))["evidence"]["kind"]
    assert kind == (await scene.get("/v1/acceptance"))["store"]["kind"]
    assert ("outrider:evidence_store_up 1.0" in text) == (kind == "file")
    assert ("outrider:evidence_stored_requests_total 1.0" in text) == (kind == "file")


async def test_what_verifiers_report_is_beside_it(scene: Scene) -> None:
    delivery = scene.gateway.evidence.delivery()
    delivery.metrics(metrics_of({"speculation.draft_tokens": 7}))
    async with asyncio.timeout(WAIT_S):
        while not (body := await scene.get("/v1/acceptance"))["reported"]:
            await asyncio.sleep(0.002)
    assert body["reported"] == {"draft_tokens": 7.0}


async def test_a_file_that_fails_leaves_memory(
    tmp_path: Path, socket_dir: Path, verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    path = tmp_path / "e.duckdb"
    path.write_bytes(b"garbage" * 10_000)
    settings = EvidenceSettings(listen=f"unix:{socket_dir}/otlp.sock", database=str(path))
    gateway = await start_gateway(verifier.address, evidence=settings)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=WAIT_S, trust_env=False) as http:
        scene = Scene(gateway, http)
        await scene.send(at(1, {"n": [(2, 1)]}, rounds=(RoundRecord(0, 0, 0, 0, 1),)))
        body = await scene.get("/v1/acceptance", group_by="proposer")
        assert body["totals"]["num_draft_tokens"] == 2
        assert body["store"]["kind"] == "file"
        assert "is damaged or no DuckDB file" in body["store"]["problem"]
        health = await scene.get("/health")
        assert health["status"] == "ok"
        assert health["evidence"] == body["store"]
        assert len((await scene.get("/v1/requests"))["data"]) == 1
        assert (await http.get("/v1/acceptance/export")).status_code == 200
        assert "outrider:evidence_store_up 0.0" in (await http.get("/metrics")).text


async def test_nothing_is_kept_where_nothing_shall_be(
    socket_dir: Path, verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    settings = EvidenceSettings(listen=f"unix:{socket_dir}/otlp.sock", database="none")
    gateway = await start_gateway(verifier.address, evidence=settings)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=WAIT_S, trust_env=False) as http:
        await Scene(gateway, http).send(at(1))
        for path in ("/v1/acceptance", "/v1/requests", "/v1/requests/x", "/v1/acceptance/export"):
            response = await http.get(path)
            assert response.status_code == 404
            assert "--evidence-db is none" in response.json()["error"]["message"]
        assert gateway.evidence.recent.all() == []


async def test_an_address_in_use_ends_the_start(
    socket_dir: Path, verifier: FakeVerifier, start_gateway: StartGateway
) -> None:
    settings = EvidenceSettings(listen=f"unix:{socket_dir}/otlp.sock")
    await start_gateway(verifier.address, evidence=settings)
    with pytest.raises(InputError, match="--otlp-listen"):
        await start_gateway(verifier.address, evidence=settings)


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("--evidence-db", {"database": ""}),
        ("--evidence-max-mb", {"max_mb": 3}),
        ("--evidence-max-age", {"max_age_s": 0.5}),
        ("--otlp-forward", {"listen": "h:4317", "forward": "http://h:4317"}),
    ],
)
def test_settings_are_checked(option: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{option}: "):
        EvidenceSettings(**changes)
