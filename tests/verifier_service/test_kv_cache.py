"""Blocks: no double use, no leak, neighbours where possible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier_service.kv_cache import BlockPool, is_contiguous


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=60))
def test_no_block_has_two_owners_and_none_is_lost(actions: list[tuple[int, int]]) -> None:
    pool = BlockPool(16)
    tables: list[list[int]] = [[] for _ in range(6)]
    for who, count in actions:
        if count == 0:
            pool.release(tables[who])
        else:
            held = len(tables[who])
            fits = count <= pool.num_free
            assert pool.extend(tables[who], count) is fits
            assert len(tables[who]) == held + (count if fits else 0)
        owned = [block for table in tables for block in table]
        assert len(owned) == len(set(owned))
        assert all(0 <= block < 16 for block in owned)
        assert pool.num_free == 16 - len(owned)


def test_a_growing_sequence_keeps_neighbours() -> None:
    pool = BlockPool(64)
    first: list[int] = []
    second: list[int] = []
    assert pool.extend(first, 4)
    assert pool.extend(second, 4)
    for _ in range(8):
        assert pool.extend(first, 1)
        assert pool.extend(second, 1)
    assert is_contiguous(first)
    assert is_contiguous(second)


def test_blocks_are_scattered_when_they_must_be() -> None:
    pool = BlockPool(6)
    tables: list[list[int]] = [[], [], []]
    for table in tables:
        assert pool.extend(table, 2)
    middle = sorted(tables, key=lambda table: table[0])[1]
    outer = [table for table in tables if table is not middle]
    for table in outer:
        pool.release(table)
    scattered: list[int] = []
    assert pool.extend(scattered, 4)
    assert not is_contiguous(scattered)
    assert not set(scattered) & set(middle)


def test_too_many_takes_nothing() -> None:
    pool = BlockPool(3)
    table: list[int] = []
    assert not pool.extend(table, 4)
    assert table == []
    assert pool.num_free == 3


def test_a_double_free_is_an_error() -> None:
    pool = BlockPool(3)
    table: list[int] = []
    pool.extend(table, 2)
    copy = list(table)
    pool.release(table)
    with pytest.raises(ValueError, match="freed twice"):
        pool.release(copy)


def test_a_cache_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks 0"):
        BlockPool(0)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [([3], True), ([3, 4, 5], True), ([5, 4, 3], False), ([3, 5, 4, 6], False), ([1, 3], False)],
)
def test_is_contiguous(blocks: list[int], expected: bool) -> None:
    assert is_contiguous(blocks) is expected
