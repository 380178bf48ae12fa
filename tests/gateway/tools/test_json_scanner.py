"""The JSON scanner against `json.loads`, which reads the same grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.json_scanner import JsonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def is_json(text: str) -> bool:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def scanned(text: str) -> tuple[bool, int]:
    """Whether `text` is one value, and where the scanner stopped."""
    scanner = JsonScanner()
    end = scanner.read(text)
    scanner.finish()
    return scanner.done, end


@given(VALUES, st.booleans(), st.sampled_from((None, 2)))
def test_every_value_is_read_to_its_end(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert scanned(text) == (True, len(text))
    assert scanned(f" \n{text} x")[1] == len(text) + 2


@given(VALUES, st.integers(0, 60), st.sampled_from('{}[]",:\\0129.eE+-tfn \n\x01é'))
def test_it_accepts_what_json_loads_accepts(value: Any, at: int, char: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    changed = text[:at] + char + text[at + 1 :]
    done, end = scanned(changed)
    assert (done and not changed[end:].strip(" \n\t\r")) == is_json(changed)


@given(st.text(alphabet='{}[]",:\\u0aF129.eE+-trufalsn \n', max_size=12))
def test_it_agrees_on_noise(text: str) -> None:
    done, end = scanned(text)
    assert (done and not text[end:].strip(" \n\t\r")) == is_json(text)


@given(VALUES)
def test_character_by_character(value: Any) -> None:
    text = json.dumps(value)
    scanner = JsonScanner()
    for char in text:
        assert scanner.read(char) == 1
    scanner.finish()
    assert scanner.done


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("{,", 1),
        ('{"a" 1', 5),
        ('{"a": 1,}', 8),
        ("[1,]", 3),
        ("[01]", 2),
        ("[1.]", 3),
        ("[-]", 2),
        ("[1e+]", 4),
        ('["\\x"]', 3),
        ('["\\u12g4"]', 6),
        ('["a\nb"]', 3),
        ("[trie]", 3),
        ("[NaN]", 1),
        ("[}", 1),
    ],
)
def test_it_fails_at_the_first_wrong_character(text: str, at: int) -> None:
    scanner = JsonScanner()
    assert scanner.read(text) == at
    assert scanner.failed
    assert not scanner.done


def test_depth_needs_no_recursion() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert scanned(text) == (True, len(text))


def test_nothing_is_read_behind_the_value() -> None:
    scanner = JsonScanner()
    assert scanner.read('{"a": 1} {') == 8
    assert scanner.done
    assert scanner.read("x") == 0
