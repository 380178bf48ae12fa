"""What may be asked, how times are written, and how a wrong question is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.evidence.filters import Dimension, parse_acceptance, parse_selection, parse_time
from outrider.errors import InputError

NOW = 1_800_000_000.0
SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1700000000", 1_700_000_000),
        ("0", 0),
        ("15m", NOW - 900),
        ("1.5h", NOW - 5400),
        ("7d", NOW - 7 * 86400),
        ("250ms", NOW - 0.25),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC).timestamp()),
        ("2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC).timestamp()),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text, NOW, "since") == round(seconds * 1e6) * 1000


def test_unix_seconds_keep_their_nanoseconds() -> None:
    assert parse_time("1700000000.123456789", NOW, "since") == 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    "text", ["soon", "15 m", "-5m", "999999999999", "2026-13-01", "1e9", "NaN", "0x10", "15m2s"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InputError, match=r"^until: ") as caught:
        parse_time(text, NOW, "until")
    assert text in str(caught.value)


def test_a_whole_question() -> None:
    query = parse_acceptance(
        [
            ("proposer", "ngram"),
            ("temperature", "0-0.5"),
            ("since", "1h"),
            ("until", "1800000000"),
            ("group_by", "time,proposer"),
            ("group_by", "position"),
            ("interval", "5m"),
        ],
        NOW,
    )
    assert query.selection.equals == {"proposer": "ngram", "temperature": "0-0.5"}
    assert query.selection.since_ns == (1_800_000_000 - 3600) * SECOND
    assert query.selection.until_ns == 1_800_000_000 * SECOND
    assert query.group_by == (Dimension.TIME, Dimension.PROPOSER, Dimension.POSITION)
    assert query.keys == (Dimension.TIME, Dimension.PROPOSER)
    assert query.interval_ns == 300 * SECOND


def test_empty_fields_of_a_form_ask_for_nothing() -> None:
    names = ("proposer", "since", "until", "group_by", "interval", "model")
    assert parse_acceptance([(name, "") for name in names], NOW) == parse_acceptance([], NOW)


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ([("colour", "red")], "colour"),
        ([("position", "1")], "position"),
        ([("group_by", "time,colour")], "group_by"),
        ([("interval", "5m")], "interval"),
        ([("group_by", "time"), ("interval", "5")], "interval"),
        ([("group_by", "time"), ("interval", "10ms")], "interval"),
        ([("group_by", "time"), ("interval", "9999d")], "interval"),
        ([("since", "1h"), ("until", "2h")], "since"),
        ([("since", "1h"), ("since", "2h")], "since"),
        ([("model", "a"), ("model", "b")], "model"),
        ([("workload", "w" * 257)], "workload"),
        ([("since", "yesterday")], "since"),
    ],
)
def test_a_wrong_question_names_its_field(pairs: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(InputError, match=rf"^{field}: "):
        parse_acceptance(pairs, NOW)


def test_a_selection_takes_only_the_names_of_its_caller() -> None:
    assert parse_selection([("limit", "3")], NOW, ("limit",)).equals == {}
    with pytest.raises(InputError, match="limit"):
        parse_selection([("limit", "3")], NOW)
