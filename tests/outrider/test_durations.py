"""Lengths of time as people write them."""

from __future__ import annotations

import pytest

from outrider.durations import duration_s, parse_duration
from outrider.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604_800), ("2w", 1209600)],
)
def test_lengths(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "m", "-1m", "1 m", "1m30s", "1e3s", "١m"])
def test_what_is_none(text: str) -> None:
    assert duration_s(text) is None


def test_bounds() -> None:
    assert parse_duration("1m", "--age", "1m", "1h") == 60
    assert parse_duration("60m", "--age", "1m", "1h") == 3600
    for text in ("59s", "61m", "long"):
        with pytest.raises(InputError, match=rf"^--age: '{text}' is no length of time from 1m"):
            parse_duration(text, "--age", "1m", "1h")
