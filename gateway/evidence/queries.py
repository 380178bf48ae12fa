"""Questions to an evidence file, as SQL.

Knows the tables; every name in a statement is one of ours, every value a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.evidence.answers import Answer, GroupKey, sorted_groups
from gateway.evidence.filters import AcceptanceQuery, Dimension, Selection
from gateway.evidence.records import ProposerShare, RequestRecord, RoundRecord
from gateway.evidence.schema import REQUESTS, ROUNDS, SHARES
from gateway.evidence.sums import AcceptanceSums, Tally
from outrider.errors import InputError

if TYPE_CHECKING:
    import duckdb

MAX_GROUPS: Final = 10_000

_COUNTS: Final = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
_LISTS: Final = ("acceptance_histogram", "accepted_per_position", "proposed_per_position")
_COLUMNS: Final = {"temperature": "temperature_bucket"}
_BY_PROPOSER: Final = {Dimension.PROPOSER.value, Dimension.METHOD.value}


def acceptance(connection: duckdb.DuckDBPyConnection, query: AcceptanceQuery) -> Answer:
    """Sums by group. Raises InputError where there are more than MAX_GROUPS, or duckdb.Error."""
    groups = _tallies(connection, query)
    selection = query.selection
    totals = _tallies(connection, AcceptanceQuery(selection)).get((), Tally())
    where, values = _where(selection, _table(selection, ()))
    first, ratio = connection.execute(
        "SELECT min(ended_ns), min(sampling_ratio) FROM requests WHERE "
        + (
            where
            if _table(selection, ()) == "requests"
            else f"(trace_id, span_id) IN (SELECT (trace_id, span_id) FROM shares WHERE {where})"
        ),
        values,
    ).fetchall()[0]
    since = selection.since_ns if selection.since_ns is not None else first
    return Answer(
        sorted_groups(groups), totals, since, selection.until_ns, 1.0 if ratio is None else ratio
    )


def recent_requests(
    connection: duckdb.DuckDBPyConnection, selection: Selection, limit: int, before: str = ""
) -> list[RequestRecord] | None:
    """The newest of the selection, without rounds; with `before`, those older than that request.

    None where there is no request with the id `before` (span or request id).
    """
    where, values = _where(selection, "requests", shares=True)
    if before:
        place = connection.execute(
            "SELECT started_ns, span_id FROM requests WHERE span_id = ? OR request_id = ? "
            "ORDER BY started_ns DESC, span_id DESC LIMIT 1",
            [before, before],
        ).fetchall()
        if not place:
            return None
        where += " AND (started_ns, span_id) < (?, ?)"
        values += place[0]
    return _requests(
        connection,
        f"WHERE {where} ORDER BY started_ns DESC, span_id DESC LIMIT ?",
        [*values, limit],
    )


def one_request(connection: duckdb.DuckDBPyConnection, name: str) -> RequestRecord | None:
    """The newest request of that span or request id, with its rounds; None where there is none."""
    found = _requests(
        connection,
        "WHERE span_id = ? OR request_id = ? ORDER BY started_ns DESC, span_id DESC LIMIT 1",
        [name, name],
        with_rounds=True,
    )
    return found[0] if found else None


def _tallies(
    connection: duckdb.DuckDBPyConnection, query: AcceptanceQuery
) -> dict[GroupKey, Tally]:
    table = _table(query.selection, query.keys)
    where, values = _where(query.selection, table)
    keys = [_key(dimension, query.interval_ns) for dimension in query.keys]
    named = ", ".join([*(f"{key} AS k{i}" for i, key in enumerate(keys)), ""])
    group = ", ".join([*(f"k{i}" for i in range(len(keys))), ""])
    sums = ", ".join(f"sum({name})" for name in _COUNTS)
    source = (
        f"SELECT {named} completion_tokens AS tokens, {', '.join(_COUNTS)} "
        f"FROM {table} WHERE {where}"
    )
    if table == SHARES.name:
        # A request with several rows in a group is one request of it.
        source = (
            f"SELECT {named} any_value(completion_tokens) AS tokens, "
            f"{', '.join(f'sum({name}) AS {name}' for name in _COUNTS)} "
            f"FROM {table} WHERE {where} GROUP BY {group} trace_id, span_id"
        )
    rows = connection.execute(
        f"SELECT {group} count(*), sum(tokens), {sums} FROM ({source}) GROUP BY ALL "
        f"LIMIT {MAX_GROUPS + 1}",
        values,
    ).fetchall()
    if len(rows) > MAX_GROUPS:
        raise InputError(
            f"group_by: gives more than {MAX_GROUPS} groups; narrow since and until, or widen "
            "interval"
        )
    width = len(keys)
    result: dict[GroupKey, Tally] = {}
    for row in rows:
        if row[width]:
            requests, tokens, steps, drafted, accepted = map(int, row[width:])
            result[row[:width]] = Tally(requests, tokens, steps, drafted, accepted)
    for name, target in zip(_LISTS, ("histogram", *_LISTS[1:]), strict=True):
        places = connection.execute(
            f"SELECT {group} place, sum(value) FROM (SELECT {named} unnest({name}) AS value, "
            f"generate_subscripts({name}, 1) AS place FROM {table} WHERE {where}) GROUP BY ALL",
            values,
        ).fetchall()
        for row in places:
            _put(getattr(result[row[:width]], target), row[width] - 1, int(row[width + 1]))
    return result


def _put(target: list[int], place: int, value: int) -> None:
    target.extend([0] * (place + 1 - len(target)))
    target[place] = value


def _table(selection: Selection, keys: Sequence[Dimension]) -> str:
    """Where one row is as much as is meant: a request, or a proposer's share of one."""
    named = {dimension.value for dimension in keys} | set(selection.equals)
    return SHARES.name if named & _BY_PROPOSER else REQUESTS.name


def _key(dimension: Dimension, interval_ns: int) -> str:
    if dimension is Dimension.TIME:
        return f"(ended_ns // {interval_ns} * {interval_ns}) // 1000000000"
    name: str = dimension.value
    return _COLUMNS.get(name, name)


def _where(selection: Selection, table: str, *, shares: bool = False) -> tuple[str, list[Any]]:
    """A condition and its parameters; with `shares`, proposers are looked for in their table."""
    conditions, values = ["true"], list[Any]()
    for name, condition in (("since_ns", "ended_ns >= ?"), ("until_ns", "ended_ns < ?")):
        bound = getattr(selection, name)
        if bound is not None:
            conditions.append(condition)
            values.append(bound)
    for name, value in selection.equals.items():
        condition = f"{_COLUMNS.get(name, name)} = ?"
        if table == ROUNDS.name or (shares and name in _BY_PROPOSER):
            condition = (
                f"(trace_id, span_id) IN (SELECT (trace_id, span_id) FROM shares WHERE {condition})"
            )
        conditions.append(condition)
        values.append(value)
    return " AND ".join(conditions), values


def where_literal(selection: Selection, table: str) -> str:
    """The same condition with its values in it, for statements that take no parameters."""
    condition, values = _where(selection, table, shares=table != SHARES.name)
    parts = condition.split("?")
    assert len(parts) == len(values) + 1
    quoted = [
        str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
        for value in values
    ]
    return "".join([part + value for part, value in zip(parts, [*quoted, ""], strict=True)])


def _requests(
    connection: duckdb.DuckDBPyConnection,
    rest: str,
    values: Sequence[Any],
    *,
    with_rounds: bool = False,
) -> list[RequestRecord]:
    rows = _dicts(connection, f"SELECT {REQUESTS.names} FROM requests {rest}", values)
    shares: dict[tuple[str, str], list[ProposerShare]] = {}
    rounds: dict[tuple[str, str], list[RoundRecord]] = {}
    keys = [[row["trace_id"] for row in rows], [row["span_id"] for row in rows]]
    of_them = "WHERE (trace_id, span_id) IN (SELECT (unnest($1::VARCHAR[]), unnest($2::VARCHAR[])))"
    for row in _dicts(connection, f"SELECT {SHARES.names} FROM shares {of_them}", keys):
        if row["proposer"] is not None:
            share = ProposerShare(row["proposer"], row["method"], _sums(row), row["lookahead_hits"])
            shares.setdefault((row["trace_id"], row["span_id"]), []).append(share)
    if with_rounds:
        statement = f"SELECT {ROUNDS.names} FROM rounds {of_them} ORDER BY round"
        for row in _dicts(connection, statement, keys):
            rounds.setdefault((row["trace_id"], row["span_id"]), []).append(_round(row))
    return [_record(row, shares, rounds) for row in rows]


def _dicts(
    connection: duckdb.DuckDBPyConnection, statement: str, values: Sequence[Any]
) -> Iterable[dict[str, Any]]:
    cursor = connection.execute(statement, list(values))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _sums(row: dict[str, Any]) -> AcceptanceSums:
    return AcceptanceSums(*(row[name] for name in _COUNTS), *(tuple(row[name]) for name in _LISTS))


def _round(row: dict[str, Any]) -> RoundRecord:
    values = {
        column.name: row[column.name]
        for column in ROUNDS.columns
        if column.name not in ("trace_id", "span_id", "ended_ns", "round")
    }
    for name in ("draft_texts", "emitted_texts"):
        values[name] = None if values[name] is None else tuple(values[name])
    return RoundRecord(**values)


def _record(
    row: dict[str, Any],
    shares: dict[tuple[str, str], list[ProposerShare]],
    rounds: dict[tuple[str, str], list[RoundRecord]],
) -> RequestRecord:
    key = row["trace_id"], row["span_id"]
    off = tuple(zip(row["off_reasons"], row["off_rounds"], strict=True))
    derived = ("temperature_bucket", "off_reasons", "off_rounds", *_COUNTS, *_LISTS)
    plain = {
        column.name: row[column.name] for column in REQUESTS.columns if column.name not in derived
    }
    return RequestRecord(
        **plain,
        sums=_sums(row),
        off=off,
        proposers=tuple(shares.get(key, ())),
        rounds=tuple(rounds.get(key, ())),
    )
