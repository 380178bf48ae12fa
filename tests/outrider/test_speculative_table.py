"""The speculative config against the reference: every key with good, edge and bad values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.config import SpeculativeConfig
from outrider.errors import InputError
from outrider.speculative_keys import KEYS
from outrider.speculative_names import INTERNAL_KEYS, METHODS
from outrider.speculative_options import parse_speculative_config
from outrider.speculative_unserved import UnservedKeys
from tests.outrider.speculative_table import (
    DRAFT,
    INTERNAL,
    KEYS_OF_0_29,
    KEYS_OF_0_33,
    METHODS_OF_0_29,
    NGRAM,
    REFUSED,
    SAME,
    SUFFIX,
    WORKS,
    Row,
)

BASES = (NGRAM, {**SUFFIX, "num_speculative_tokens": 4}, DRAFT)
# What these switches ask for when they are off is what a draft model does anyway.
ASK_FOR_NOTHING = (
    ("use_heterogeneous_vocab", False),
    ("parallel_drafting", False),
    ("use_local_argmax_reduction", False),
)


def parse(entry: dict[str, Any]) -> SpeculativeConfig:
    (config,) = parse_speculative_config(entry)
    return config


def refusal(entry: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        parse_speculative_config(entry)
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert text.startswith("--speculative-config: ")
    assert "\n" not in text
    return text


def cases(rows: tuple[Row, ...], *kinds: str) -> list[Any]:
    return [
        pytest.param(row, value, id=f"{row.base['method']}-{row.key}-{kind}-{value!r}")
        for row in rows
        for kind in kinds
        for value in getattr(row, kind)
    ]


def plain(value: Any) -> Any:
    """As JSON has it: lists, not tuples."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(("row", "value"), cases(WORKS, "good", "edge"))
def test_good_and_edge_values_are_kept(row: Row, value: Any) -> None:
    kept = plain(getattr(parse({**row.base, row.key: value}), row.key))
    expected = sorted(value) if row.key == "num_speculative_tokens_per_batch_size" else value
    assert kept == expected


@pytest.mark.parametrize(("row", "value"), cases(WORKS, "bad"))
def test_bad_values_are_refused_by_key_and_value(row: Row, value: Any) -> None:
    text = refusal({**row.base, row.key: value})
    assert row.key.split("_per_batch")[0] in text
    if row.key != "num_speculative_tokens_per_batch_size":
        assert repr(value)[:60] in text


@pytest.mark.parametrize("row", WORKS, ids=lambda row: f"{row.base['method']}-{row.key}")
def test_defaults_are_vllms_but_where_said(row: Row) -> None:
    if row.key == "method" or row.key in row.base:
        assert row.vllm is None
        return
    expected = row.vllm if row.ours is SAME else row.ours
    assert getattr(parse(row.base), row.key) == expected
    assert getattr(parse({**row.base, row.key: None}), row.key) == expected


@pytest.mark.parametrize(("row", "value"), cases(REFUSED, "good", "edge"))
@pytest.mark.parametrize("base", BASES, ids=lambda base: base["method"])
def test_good_values_of_keys_that_do_not_apply_are_refused(
    row: Row, value: Any, base: dict[str, Any]
) -> None:
    entry = {**base, row.key: value}
    if base is DRAFT and (row.key, value) in ASK_FOR_NOTHING:
        assert parse(entry) == parse(base)
        return
    text = refusal(entry)
    assert f" {row.key} (" in text
    assert "it means nothing for" in text or "is not supported: " in text
    # What is refused for every method is not told to belong to one that works.
    assert f"means nothing for {base['method']!r}" not in text or "not served yet" in text


@pytest.mark.parametrize(("row", "value"), cases(REFUSED, "bad"))
def test_bad_values_of_refused_keys_are_told_as_bad(row: Row, value: Any) -> None:
    text = refusal({**row.base, row.key: value})
    assert text.startswith(f"--speculative-config: {row.key}")
    assert "means nothing" not in text
    assert "is not supported" not in text


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.key)
def test_defaults_of_refused_keys_are_vllms(row: Row) -> None:
    assert UnservedKeys.model_fields[row.key].get_default() == row.vllm
    assert parse({**row.base, row.key: None}) == parse(row.base)


@pytest.mark.parametrize("missing", ["model", "num_speculative_tokens"])
def test_a_draft_model_needs_its_name_and_a_length(missing: str) -> None:
    entry = {key: value for key, value in DRAFT.items() if key != missing}
    assert f"method 'draft_model' requires {missing}" in refusal(entry)
    assert f"method 'draft_model' requires {missing}" in refusal({**entry, missing: None})


def test_the_table_has_every_served_method() -> None:
    assert tuple(base["method"] for base in BASES) == METHODS


def test_the_table_is_the_references_list_of_keys() -> None:
    told = {row.key for row in (*WORKS, *REFUSED)}
    assert told == {*KEYS_OF_0_29, *KEYS_OF_0_33}
    assert told == set(KEYS)
    assert set(INTERNAL) == INTERNAL_KEYS


def test_every_key_is_checked_in_one_place() -> None:
    assert SpeculativeConfig.model_fields.keys() | UnservedKeys.model_fields.keys() == set(KEYS)
    assert not SpeculativeConfig.model_fields.keys() & UnservedKeys.model_fields.keys()
    assert {row.key for row in WORKS} == SpeculativeConfig.model_fields.keys()


@pytest.mark.parametrize("base", BASES, ids=lambda base: base["method"])
@pytest.mark.parametrize("key", sorted(SpeculativeConfig.model_fields))
def test_a_working_key_means_something_or_is_refused(base: dict[str, Any], key: str) -> None:
    method = base["method"]
    value = next(row.good[-1] for row in WORKS if row.key == key)
    entry = {**base, key: method if key == "method" else value}
    if key == "method" or method in KEYS[key].methods:
        assert key in str(parse(entry)) or key == "method"
    else:
        owners = [name for name in KEYS[key].methods if name in METHODS]
        assert f"belongs to method {owners[0]!r}; it means nothing for {method!r}" in refusal(entry)


@pytest.mark.parametrize("method", METHODS_OF_0_29)
def test_methods_that_are_known_and_not_served(method: str) -> None:
    text = refusal({"method": method, "num_speculative_tokens": 3, "model": "org/head"})
    assert f"method {method!r}" in text
    assert "is not served yet by Outrider: it serves ngram, suffix and draft_model" in text
    # Neither a missing model nor a missing length hides it.
    assert "is not served yet by Outrider" in refusal({"method": method})
