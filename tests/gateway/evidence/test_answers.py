"""The same questions to the memory and to the file: both answer what counting by hand gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gateway.evidence import queries
from gateway.evidence.aggregate import GRAIN_NS, Aggregate
from gateway.evidence.answers import Answer, GroupKey, answer_json
from gateway.evidence.file import EvidenceFile
from gateway.evidence.filters import AcceptanceQuery, Dimension, Selection
from gateway.evidence.labels import OTHER
from gateway.evidence.recent import RecentRequests
from gateway.evidence.records import RequestRecord, RoundRecord
from gateway.evidence.sums import AcceptanceSums, Tally
from outrider.errors import InputError
from tests.gateway.evidence.otlp import SECOND, random_record, record
from tests.gateway.evidence.test_spans import ROUNDS

START = 1_700_000_000 * SECOND
INTERVAL = 60 * SECOND


def records_of(seed: int, count: int = 120) -> list[RequestRecord]:
    rng = random.Random(seed)
    result = []
    for _ in range(count):
        ended = START + rng.randrange(600) * SECOND
        result.append(random_record(rng, ended_ns=ended, started_ns=ended - SECOND))
    return result


RECORDS = records_of(1)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    path = tmp_path_factory.mktemp("evidence") / "e.duckdb"
    file = EvidenceFile(path, max_bytes=2**30, max_age_s=1e9)
    file.write(RECORDS)
    yield file.connection
    file.close()


@pytest.fixture(scope="module")
def aggregate() -> Aggregate:
    result = Aggregate()
    for one in RECORDS:
        result.add(one)
    return result


def by_hand(records: Iterable[RequestRecord], query: AcceptanceQuery) -> dict[GroupKey, Any]:
    """Sums of each group, from the requests one by one."""
    selection = query.selection
    groups: dict[GroupKey, Tally] = {}
    for one in records:
        if selection.since_ns is not None and one.ended_ns < selection.since_ns:
            continue
        if selection.until_ns is not None and one.ended_ns >= selection.until_ns:
            continue
        counted: set[GroupKey] = set()
        for labels, sums in _parts(one, query):
            if any(labels[name] != value for name, value in selection.equals.items()):
                continue
            key = tuple(labels[d.value] for d in query.keys)
            tally = groups.setdefault(key, Tally())
            first = key not in counted
            counted.add(key)
            tally.add(sums, int(first), one.completion_tokens if first else 0)
    return {key: figures(tally) for key, tally in groups.items()}


def _parts(
    one: RequestRecord, query: AcceptanceQuery
) -> Iterator[tuple[dict[str, Any], AcceptanceSums]]:
    labels: dict[str, Any] = {
        "model": one.model,
        "verifier": one.verifier,
        "workload": one.workload,
        "temperature": one.temperature_bucket,
        "proposer": None,
        "method": None,
        "time": one.ended_ns // query.interval_ns * query.interval_ns // SECOND,
    }
    asked = {d.value for d in query.keys} | set(query.selection.equals)
    if not one.proposers or not asked & {"proposer", "method"}:
        yield labels, one.sums
        return
    for share in one.proposers:
        yield {**labels, "proposer": share.name, "method": share.method}, share.sums


def figures(tally: Tally) -> dict[str, object]:
    return tally.to_json()


def groups_of(answer: Answer) -> dict[GroupKey, Any]:
    return {group.key: figures(group.tally) for group in answer.groups}


GROUPS: list[tuple[Dimension, ...]] = [
    (),
    *((dimension,) for dimension in Dimension if dimension is not Dimension.POSITION),
    *itertools.combinations((Dimension.METHOD, Dimension.TIME, Dimension.TEMPERATURE), 2),
    (Dimension.PROPOSER, Dimension.METHOD, Dimension.WORKLOAD, Dimension.VERIFIER),
]
SELECTIONS = [
    Selection(),
    Selection(equals={"proposer": "ngram"}),
    Selection(equals={"method": "ngram"}),
    Selection(equals={"method": "ngram", "model": "a"}),
    Selection(equals={"workload": "it's; code", "temperature": "0-0.5"}),
    Selection(equals={"verifier": "nobody"}),
    Selection(since_ns=START + 120 * SECOND, until_ns=START + 480 * SECOND),
]


@pytest.mark.parametrize("group_by", GROUPS, ids=lambda g: "+".join(d.value for d in g) or "all")
def test_both_count_as_by_hand(
    group_by: tuple[Dimension, ...], connection: Any, aggregate: Aggregate
) -> None:
    for selection in SELECTIONS:
        query = AcceptanceQuery(selection, group_by, INTERVAL)
        expected = by_hand(RECORDS, query)
        from_file = queries.acceptance(connection, query)
        from_memory = aggregate.query(query)
        assert groups_of(from_file) == expected, selection
        assert groups_of(from_memory) == expected, selection
        whole = by_hand(RECORDS, AcceptanceQuery(selection)).get((), figures(Tally()))
        assert figures(from_file.totals) == figures(from_memory.totals) == whole
        orders = [[group.key for group in a.groups] for a in (from_file, from_memory)]
        assert orders[0] == orders[1]


def test_totals_are_the_sums_of_the_requests(connection: Any, aggregate: Aggregate) -> None:
    answer = queries.acceptance(connection, AcceptanceQuery())
    assert answer.totals.requests == len(RECORDS)
    for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        total = sum(getattr(one.sums, name) for one in RECORDS)
        assert getattr(answer.totals, name) == getattr(aggregate.totals, name) == total > 0
    assert answer.totals.completion_tokens == sum(one.completion_tokens for one in RECORDS)
    assert answer.since_ns == min(one.ended_ns for one in RECORDS)


def test_positions_are_parts_of_their_group(connection: Any) -> None:
    query = AcceptanceQuery(group_by=(Dimension.POSITION, Dimension.MODEL))
    answer = queries.acceptance(connection, query)
    body: Any = answer_json(query, answer, 0.0)
    assert body["group_by"] == ["position", "model"]
    for model in ("a", "b"):
        rows = [row for row in body["data"] if row["group"]["model"] == model]
        assert [row["group"]["position"] for row in rows] == [0, 1, 2, 3]
        assert list(rows[0]["group"]) == ["position", "model"]
        mine = [one for one in RECORDS if one.model == model]
        for position, row in enumerate(rows):
            proposed = sum((*one.sums.proposed_per_position, *[0] * 4)[position] for one in mine)
            accepted = sum((*one.sums.accepted_per_position, *[0] * 4)[position] for one in mine)
            assert row["num_draft_tokens"] == row["num_spec_steps"] == proposed
            assert row["num_accepted_draft_tokens"] == accepted
            assert row["draft_acceptance_rate"] == accepted / proposed
            assert row["acceptance_histogram"] == [proposed - accepted, accepted]


def test_the_lowest_sampling_ratio_is_told(connection: Any, aggregate: Aggregate) -> None:
    assert queries.acceptance(connection, AcceptanceQuery()).sampling_ratio == 1.0
    sampled = Aggregate()
    for ratio in (1.0, 0.25, 0.5):
        sampled.add(record({}, sampling_ratio=ratio))
    assert sampled.query(AcceptanceQuery()).sampling_ratio == 0.25


def test_too_many_groups_are_refused(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_GROUPS", 3)
    query = AcceptanceQuery(group_by=(Dimension.TIME,), interval_ns=SECOND)
    with pytest.raises(InputError, match=r"^group_by: gives more than 3 groups"):
        queries.acceptance(connection, query)


def test_memory_has_no_finer_times_than_its_grain(aggregate: Aggregate) -> None:
    for seconds in (1, 15):
        query = AcceptanceQuery(group_by=(Dimension.TIME,), interval_ns=seconds * SECOND)
        with pytest.raises(InputError, match=r"^interval: .* grains of 10 s"):
            aggregate.query(query)


def test_memory_forgets_times_before_totals() -> None:
    aggregate = Aggregate(max_cells=30)
    for i in range(40):
        ended = START + i * GRAIN_NS
        aggregate.add(record({"ngram": [(2, 1)]}, ended_ns=ended, started_ns=ended))
    assert aggregate.query(AcceptanceQuery()).totals.requests == 40
    timed = aggregate.query(AcceptanceQuery(Selection(since_ns=START)))
    assert timed.totals.requests == 10
    assert timed.since_ns == START + 30 * GRAIN_NS
    late = record({}, ended_ns=START, started_ns=START)
    aggregate.add(late)
    assert aggregate.query(AcceptanceQuery()).totals.requests == 41
    assert aggregate.query(AcceptanceQuery(Selection(since_ns=START))).totals.requests == 10


def test_memory_bounds_its_combinations() -> None:
    aggregate = Aggregate(max_keys=5)
    for i in range(50):
        aggregate.add(record({"ngram": [(1, 1)]}, workload=f"w{i}"))
    answer = aggregate.query(AcceptanceQuery(group_by=(Dimension.WORKLOAD,)))
    assert len(answer.groups) == 6
    assert {g.key: g.tally.requests for g in answer.groups}[(OTHER,)] == 45
    assert answer.totals.num_draft_tokens == 50


def test_requests_come_newest_first_page_by_page(connection: Any, aggregate: Aggregate) -> None:
    recent = RecentRequests()
    for one in RECORDS:
        recent.add(one)
    expected = sorted(RECORDS, key=lambda one: (one.started_ns, one.span_id), reverse=True)
    asks: list[Callable[[int, str], list[RequestRecord] | None]] = [
        lambda limit, before: queries.recent_requests(connection, Selection(), limit, before),
        lambda limit, before: recent.select(Selection(), limit, before),
    ]
    for ask in asks:
        found: list[RequestRecord] = []
        before = ""
        while page := ask(50, before):
            found += page
            before = page[-1].span_id
        assert found == expected
        assert ask(5, "no such request") is None


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_requests_are_selected_alike(connection: Any, selection: Selection) -> None:
    recent = RecentRequests()
    for one in RECORDS:
        recent.add(one)
    from_file = queries.recent_requests(connection, selection, 1000)
    assert from_file == recent.select(selection, 1000)


def test_recent_requests_are_bounded() -> None:
    rounds = (RoundRecord(0, 0, 0, 0, 1),) * 10
    recent = RecentRequests(max_requests=5, max_rounds=25)
    kept = [record({}) for _ in range(8)]
    for one in kept:
        recent.add(one)
    assert recent.all() == kept[3:]
    for one in [record({}, rounds=rounds) for _ in range(4)]:
        recent.add(one)
    assert len(recent.all()) == 2
    assert recent.find(kept[0].request_id) is None


def test_the_file_gives_back_a_request_as_it_was(tmp_path: Path) -> None:
    told = record({"suffix": [(4, 2)]}, rounds=ROUNDS, workload="a'b\"c\n", temperature=None)
    older = record({}, request_id=told.request_id, started_ns=1, ended_ns=2)
    file = EvidenceFile(tmp_path / "e.duckdb", max_bytes=2**30, max_age_s=1e9)
    try:
        file.write([told, older])
        assert queries.one_request(file.connection, told.request_id) == told
        assert queries.one_request(file.connection, told.span_id) == told
        assert queries.one_request(file.connection, "other") is None
    finally:
        file.close()
