"""`outrider traces`: the same answers from a gateway and from its file, and clear refusals."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gateway.evidence.file import EvidenceFile
from gateway.evidence.records import RequestRecord
from gateway.evidence.settings import EvidenceSettings
from gateway.keys import given_keys
from gateway.server import RunningGateway, start
from gateway.settings import GatewaySettings
from outrider import cli
from tests.gateway.evidence.otlp import record
from tests.gateway.evidence.test_spans import ROUNDS
from tests.gateway.evidence.test_store import held_elsewhere

Run = Callable[..., tuple[int, str, str]]

KEPT = [
    record({"ngram": [(4, 2), (2, 2)]}, workload="code", rounds=ROUNDS, request_id="first"),
    record({"suffix": [(1, 0)]}, temperature=0.8, request_id="second"),
    record({}, request_id="third", finish_reason="", error="INTERNAL"),
]


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `outrider traces`; its exit code, stdout and stderr."""
    monkeypatch.delenv("OUTRIDER_API_KEY", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outrider", "traces", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = tmp_path / "e.duckdb"
    file = EvidenceFile(path, 2**30, 1e10)
    file.write(KEPT)
    file.close()
    return str(path)


async def start_with(records: list[RequestRecord], **options: Any) -> RunningGateway:
    gateway = await start(
        GatewaySettings(
            port=0,
            verifiers=("unix:/nowhere",),
            drain_timeout_s=0.0,
            evidence=EvidenceSettings(),
            **options,
        )
    )
    for one in records:
        gateway.evidence.take(one)
    return gateway


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    running = await start_with(KEPT)
    yield running
    await running.stop()


COMMANDS = [
    ("acceptance",),
    ("acceptance", "--group-by", "proposer,temperature,time", "--interval", "1h"),
    ("acceptance", "--group-by", "position", "--workload", "code"),
    ("requests",),
    ("requests", "--limit", "1", "--proposer", "suffix"),
    ("requests", "--before", "second"),
    ("show", "first"),
    ("show", "third"),
]


async def test_a_gateway_and_its_file_say_the_same(
    outrider: Run, gateway: RunningGateway, db: str
) -> None:
    for command in COMMANDS:
        from_file = await asyncio.to_thread(outrider, *command, "--db", db)
        from_gateway = await asyncio.to_thread(outrider, *command, "--url", gateway.url)
        assert from_file[0] == 0, from_file
        assert from_gateway == from_file


async def test_json_is_what_the_gateway_answers(
    outrider: Run, gateway: RunningGateway, db: str
) -> None:
    for command in (COMMANDS[1], COMMANDS[4], COMMANDS[6]):
        as_json = [
            json.loads((await asyncio.to_thread(outrider, *command, *where, "--json"))[1])
            for where in (("--db", db), ("--url", gateway.url))
        ]
        for name in ("data", "totals", "rounds", "request_id"):
            assert as_json[0].get(name) == as_json[1].get(name)


def test_the_table_of_acceptance(outrider: Run, db: str) -> None:
    code, out, _ = outrider("acceptance", "--db", db)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:2] == ["proposer", "requests"]
    assert lines[1] == ["ngram", "1", "7", "2", "6", "4", "3.00", "66.7%"]
    assert lines[2] == ["suffix", "1", "7", "1", "1", "0", "1.00", "0.0%"]
    assert lines[3][0] == "(none)"
    assert lines[4] == ["all", "3", "21", "3", "7", "4", "2.33", "57.1%"]


def test_a_request_with_its_rounds(outrider: Run, db: str) -> None:
    _, out, _ = outrider("show", "first", "--db", db)
    assert "4 of 6 accepted" in out
    assert "prefill" in out
    assert "(look-ahead)" in out
    assert r"'abc'" in out
    _, out, _ = outrider("show", "third", "--db", db)
    assert "INTERNAL" in out
    assert "--trace-level detailed" in out


async def test_export(outrider: Run, gateway: RunningGateway, db: str, tmp_path: Path) -> None:
    for number, where in enumerate((("--db", db), ("--url", gateway.url))):
        parquet = tmp_path / f"{number}.parquet"
        code, out, _ = await asyncio.to_thread(outrider, "export", str(parquet), *where)
        assert code == 0
        assert "bytes" in out
        assert len(duckdb.sql(f"SELECT * FROM '{parquet}'").fetchall()) == 3
        table = tmp_path / f"{number}.csv"
        options = ("--rows", "proposers", "--proposer", "ngram")
        await asyncio.to_thread(outrider, "export", str(table), *options, *where)
        (row,) = csv.DictReader(table.open())
        assert row["num_draft_tokens"] == "6"


async def test_a_key_is_sent(outrider: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await start_with(KEPT, api_keys=given_keys(["secret-key-of-tests"], "--api-key"))
    try:
        code, _, err = await asyncio.to_thread(outrider, "requests", "--url", running.url)
        assert (code, err.startswith("error: ")) == (2, True)
        asked = ("requests", "--url", running.url, "--api-key", "secret-key-of-tests")
        assert (await asyncio.to_thread(outrider, *asked))[0] == 0
        monkeypatch.setenv("OUTRIDER_API_KEY", "secret-key-of-tests")
        assert (await asyncio.to_thread(outrider, "requests", "--url", running.url))[0] == 0
    finally:
        await running.stop()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "nobody"), 2, "REQUEST_ID: 'nobody' is not kept"),
        (("acceptance", "--since", "soon"), 2, "since: 'soon' is no time"),
        (("acceptance", "--group-by", "colour"), 2, "group_by: 'colour' is not one of"),
        (("acceptance", "--interval", "5m"), 2, "interval: "),
        (("requests", "--before", "nobody"), 2, "--before: 'nobody'"),
        (("export", "out.txt"), 2, "FILE: out.txt ends neither"),
        (("export", "out.csv", "--rows", "all"), 2, "--rows: 'all' is not one of"),
    ],
)
def test_what_is_wrong_is_one_line(
    outrider: Run, db: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = outrider(*arguments, "--db", db)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) == 1


def test_an_export_never_overwrites(outrider: Run, db: str, tmp_path: Path) -> None:
    target = tmp_path / "mine.csv"
    target.write_text("precious")
    code, _, err = outrider("export", str(target), "--db", db)
    assert code == 2
    assert "exists already" in err
    assert target.read_text() == "precious"


def test_a_failed_export_leaves_no_file(outrider: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    code, _, err = outrider("export", str(target), "--db", str(tmp_path / "no.duckdb"))
    assert code == 1
    assert "is not there" in err
    assert not target.exists()


def test_a_gateway_that_is_not_there(outrider: Run, free_port: int) -> None:
    code, _, err = outrider("requests", "--url", f"http://127.0.0.1:{free_port}")
    assert code == 1
    assert "does not answer" in err
    assert outrider("requests", "--url", "127.0.0.1")[0] == 2


def test_a_file_in_use_says_whom_to_ask(outrider: Run, db: str) -> None:
    holder = held_elsewhere(Path(db))
    try:
        code, _, err = outrider("requests", "--db", db)
    finally:
        holder.communicate("", timeout=20)
    assert code == 1
    assert f"is in use by process {holder.pid}" in err
    assert "--url" in err
