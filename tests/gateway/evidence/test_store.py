"""The file: batches, limits, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gateway.evidence import queries, store
from gateway.evidence.file import EvidenceFile, FileUnusableError, open_to_read
from gateway.evidence.filters import AcceptanceQuery, Selection
from gateway.evidence.records import RoundRecord
from gateway.evidence.store import EvidenceStore, StoreUnavailableError
from tests.gateway.evidence.otlp import SECOND, record

WAIT_S = 20.0
MB = 2**20


class Scene:
    """Stores over one path, and what they said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored = 0
        self.dropped: Counter[str] = Counter()
        self.opened: list[EvidenceStore] = []

    def open(self, **changes: Any) -> EvidenceStore:
        def stored(count: int) -> None:
            self.stored += count

        def dropped(reason: str, count: int) -> None:
            self.dropped[reason] += count

        options: dict[str, Any] = {"max_bytes": 64 * MB, "max_age_s": 1e9, **changes}
        opened = EvidenceStore(self.path, on_stored=stored, on_dropped=dropped, **options)
        opened.start()
        self.opened.append(opened)
        return opened


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "folder" / "e.duckdb")
    yield made
    for opened in made.opened:
        opened.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def count(opened: EvidenceStore) -> int:
    return (
        await opened.ask(lambda c: queries.acceptance(c, AcceptanceQuery()), WAIT_S)
    ).totals.requests


async def test_a_question_sees_what_was_put_before(scene: Scene) -> None:
    opened = scene.open(batch_s=3600.0)
    for _ in range(3):
        opened.put(record({"ngram": [(2, 1)]}))
    assert await count(opened) == 3
    assert scene.stored == 3


def test_a_batch_is_written_without_being_asked(scene: Scene) -> None:
    opened = scene.open(batch_s=0.001)
    opened.put(record({}))
    until(lambda: scene.stored == 1)


def test_a_full_batch_does_not_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH_RECORDS", 3)
    opened = scene.open(batch_s=3600.0)
    for _ in range(3):
        opened.put(record({}))
    until(lambda: scene.stored == 3)


async def test_a_request_is_stored_once(scene: Scene) -> None:
    first = scene.open()
    twice = record({"ngram": [(2, 1)]})
    first.put(twice)
    first.put(twice)
    assert await count(first) == 1
    first.put(twice)
    assert await count(first) == 1
    first.stop()
    # An exporter may send again what was stored before a restart.
    second = scene.open()
    second.put(twice)
    assert await count(second) == 1
    shares = await second.ask(lambda c: c.execute("SELECT count(*) FROM shares").fetchall(), WAIT_S)
    assert shares == [(1,)]
    assert scene.stored == 1


def test_what_waits_is_written_at_the_end(scene: Scene) -> None:
    opened = scene.open(batch_s=3600.0)
    opened.put(record({}))
    opened.stop()
    with open_to_read(scene.path) as connection:
        assert queries.acceptance(connection, AcceptanceQuery()).totals.requests == 1


async def test_a_stopped_store_answers_nothing(scene: Scene) -> None:
    opened = scene.open()
    opened.stop()
    with pytest.raises(StoreUnavailableError):
        await count(opened)


async def test_a_question_that_nobody_waits_for_is_stopped(scene: Scene) -> None:
    opened = scene.open()
    began = threading.Event()

    def endless(connection: duckdb.DuckDBPyConnection) -> Any:
        began.set()
        return connection.execute(
            "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
        ).fetchall()

    asking = asyncio.create_task(opened.ask(endless, WAIT_S))
    assert await asyncio.to_thread(began.wait, WAIT_S)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await count(opened) == 0


async def test_only_its_owner_may_read_the_file(scene: Scene) -> None:
    opened = scene.open()
    opened.put(record({}))
    await count(opened)
    for file in scene.path.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
    assert scene.path.parent.stat().st_mode & 0o777 == 0o700


def held_elsewhere(path: Path) -> subprocess.Popen[str]:
    code = (
        "import duckdb, sys\n"
        "connection = duckdb.connect(sys.argv[1])\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


async def test_a_locked_file_is_told_once_and_used_when_it_is_free(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.path.parent.mkdir()
    holder = held_elsewhere(scene.path)
    with caplog.at_level(logging.INFO):
        opened = scene.open(batch_s=0.001)
        opened._backoff._first = opened._backoff._next = opened._backoff._cap = 0.01
        until(lambda: bool(opened.problem))
        assert f"is in use by process {holder.pid}" in opened.problem
        with pytest.raises(StoreUnavailableError, match="in use by process"):
            await count(opened)
        opened.put(record({}))
        holder.communicate("", timeout=WAIT_S)
        until(lambda: scene.stored == 1)
    assert opened.problem == ""
    lines = [entry.getMessage() for entry in caplog.records]
    assert len([line for line in lines if "in use by" in line]) == 1
    assert len([line for line in lines if "works again" in line]) == 1


def spoil(path: Path, how: str) -> None:
    path.parent.mkdir()
    if how == "garbage":
        path.write_bytes(b"garbage" * 10_000)
    elif how == "damaged":
        file = EvidenceFile(path, 64 * MB, 1e9)
        file.write([record({}) for _ in range(2000)])
        file.close()
        content = bytearray(path.read_bytes())
        content[8192:9000] = b"x" * 808
        path.write_bytes(content)
    elif how == "a folder":
        path.mkdir()
    elif how == "another schema":
        file = EvidenceFile(path, 64 * MB, 1e9)
        file.connection.execute("UPDATE evidence SET schema_version = 99")
        file.close()
    else:
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE customers (name VARCHAR)")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("garbage", "is damaged or no DuckDB file; move it away"),
        ("damaged", "is damaged or no DuckDB file; move it away"),
        ("a folder", "cannot be used: "),
        ("another schema", "has schema version 99, and this Outrider writes 1"),
        ("something else", "is a database of something else; name another file"),
    ],
)
def test_a_file_that_cannot_be_used_is_left_alone(scene: Scene, how: str, words: str) -> None:
    spoil(scene.path, how)
    before = scene.path.read_bytes() if scene.path.is_file() else b""
    opened = scene.open()
    until(lambda: bool(opened.problem))
    assert words in opened.problem
    assert str(scene.path) in opened.problem
    assert "\n" not in opened.problem
    opened.put(record({}))
    opened.stop()
    if how != "a folder":
        assert scene.path.read_bytes() == before


def test_a_full_disk_loses_nothing_that_still_fits_in_memory(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = threading.Event()
    full.set()
    write = EvidenceFile.write
    attempts: list[int] = []

    def failing(self: EvidenceFile, records: Any) -> int:
        if full.is_set():
            attempts.append(len(records))
            raise duckdb.IOException("IO Error: Could not write file: No space left on device")
        return write(self, records)

    monkeypatch.setattr(EvidenceFile, "write", failing)
    monkeypatch.setattr(store, "MAX_WAITING", 5)
    caplog.set_level(logging.INFO)
    opened = scene.open(batch_s=0.001)
    opened._backoff._first = opened._backoff._next = opened._backoff._cap = 0.01
    opened.put(record({}))
    until(lambda: "the disk is full" in opened.problem)
    for _ in range(7):
        opened.put(record({}))
    assert scene.dropped["store_full"] >= 2
    tried = len(attempts)
    until(lambda: len(attempts) >= tried + 3)
    full.clear()
    until(lambda: opened.problem == "" and scene.stored == 5)
    assert scene.stored + scene.dropped["store_full"] == 8
    assert caplog.text.count("the disk is full") == 1
    assert caplog.text.count("works again") == 1


def test_rounds_that_wait_are_bounded_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_WAITING_ROUNDS", 10)
    opened = scene.open(batch_s=3600.0)
    for _ in range(3):
        opened.put(record({}, rounds=(RoundRecord(0, 0, 0, 0, 1),) * 5))
    assert scene.dropped["store_full"] == 1
    opened.stop()
    assert scene.stored == 2


def test_bytes_that_wait_are_bounded_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_WAITING_BYTES", 100)
    opened = scene.open(batch_s=3600.0)
    for _ in range(3):
        opened.put(record({}, size=45))
    assert scene.dropped["store_full"] == 1
    opened.stop()
    assert scene.stored == 2


async def test_much_at_once_is_looked_at_at_once(scene: Scene) -> None:
    opened = scene.open(max_age_s=60.0, batch_s=3600.0)
    assert await count(opened) == 0  # The file has been looked at: the next time is in a minute.
    opened.put(record({}, ended_ns=1))
    assert await count(opened) == 1
    opened.put(record({}, ended_ns=2, size=7 * MB))
    assert await count(opened) == 0


async def test_a_batch_that_cannot_be_stored_does_not_stop_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = EvidenceFile.write

    def failing(self: EvidenceFile, records: Any) -> int:
        if records[0].model == "bad":
            raise duckdb.ConversionException("no")
        return write(self, records)

    monkeypatch.setattr(EvidenceFile, "write", failing)
    opened = scene.open(batch_s=3600.0)
    opened.put(record({}, model="bad"))
    assert await count(opened) == 0
    opened.put(record({}))
    assert await count(opened) == 1
    assert scene.dropped == {"unstorable": 1}
    assert opened.problem == ""


def test_nothing_is_made_of_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileUnusableError, match="cannot be used"):
        EvidenceFile(tmp_path / "file" / "e.duckdb", 64 * MB, 1e9)


async def test_a_question_waits_for_no_batch_but_its_own(scene: Scene) -> None:
    opened = scene.open(batch_s=3600.0)
    opened.put(record({}))
    answers = await asyncio.gather(*(count(opened) for _ in range(5)))
    assert answers == [1] * 5


def test_old_requests_are_forgotten(tmp_path: Path) -> None:
    now = time.time()
    file = EvidenceFile(tmp_path / "e.duckdb", 64 * MB, max_age_s=100.0)
    ages = (5, 50, 99, 101, 500)
    for age in ages:
        ended = round((now - age) * SECOND)
        rounds = (RoundRecord(0, 0, 0, 0, 1),)
        file.write([record({"a": [(1, 1)]}, ended_ns=ended, started_ns=ended, rounds=rounds)])
    assert file.prune(now) == 2
    for table in ("requests", "shares", "rounds"):
        assert file.connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(3,)]
    file.close()


def test_a_file_that_is_too_large_loses_its_oldest(tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    limit = MB * 3 // 4
    file = EvidenceFile(path, limit, max_age_s=1e10)
    rounds = tuple(
        RoundRecord(i, 4, 4, 2, 3, "ngram", verify_ns=i * 7919 % 10**6, draft_wait_ns=i * 104729)
        for i in range(100)
    )
    last = 0
    for batch in range(12):
        records = []
        for i in range(40):
            last = (1000 + batch * 40 + i) * SECOND
            records.append(record({"a": [(1, 1)]}, ended_ns=last, started_ns=last, rounds=rounds))
        file.write(records)
        file.prune(time.time())
        assert file.size <= limit
    kept = queries.recent_requests(file.connection, Selection(), 1000)
    assert kept is not None
    assert 100 < len(kept) < 480
    assert [r.ended_ns for r in kept] == [last - i * SECOND for i in range(len(kept))]
    whole = queries.one_request(file.connection, kept[0].request_id)
    assert whole is not None
    assert whole.rounds == rounds
    assert [p.name for p in tmp_path.iterdir() if "compact" in p.name] == []
    file.close()


def test_what_a_dead_process_left_of_compacting_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "e.duckdb"
    for suffix in (".compact", ".compact.wal"):
        path.with_name(path.name + suffix).write_text("half")
    EvidenceFile(path, 64 * MB, 1e9).close()
    assert [p.name for p in tmp_path.iterdir()] == ["e.duckdb"]


@pytest.mark.parametrize("made", ["nothing", "something else"])
def test_only_evidence_is_opened_to_read(tmp_path: Path, made: str) -> None:
    path = tmp_path / "e.duckdb"
    if made == "something else":
        duckdb.connect(str(path)).close()
    with pytest.raises(FileUnusableError, match=r"is not there|of something else"):
        open_to_read(path)
