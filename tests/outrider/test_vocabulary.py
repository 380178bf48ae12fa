from __future__ import annotations

import hashlib

import pytest

from outrider.vocabulary import fingerprint


def test_order_of_the_mapping_does_not_matter() -> None:
    assert fingerprint({"a": 0, "b": 1}) == fingerprint({"b": 1, "a": 0})


@pytest.mark.parametrize(
    "other",
    [
        {"a": 1, "b": 0},
        {"a": 0, "b": 1, "c": 2},
        {"a": 0},
        {"a": 0, "B": 1},
        {"a": 0, "b": 2},
        {"a": 0, "b 2": 1},
    ],
)
def test_any_difference_shows(other: dict[str, int]) -> None:
    assert fingerprint(other) != fingerprint({"a": 0, "b": 1})


def test_boundaries_between_tokens_show() -> None:
    assert fingerprint({"a1 1 b": 0}) != fingerprint({"a": 0, "b": 1})
    assert fingerprint({"ab": 0, "c": 1}) != fingerprint({"a": 0, "bc": 1})


def test_is_the_same_on_every_machine() -> None:
    digest = hashlib.sha256(b"0 3 <s>1 2 \xc3\xa92 3 \xed\xb2\x80").hexdigest()
    assert fingerprint({"<s>": 0, "é": 1, "\udc80": 2}) == digest[:16]


def test_is_short_hex() -> None:
    value = fingerprint({"a": 0})
    assert len(value) == 16
    int(value, 16)


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary is empty"):
        fingerprint({})
