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


def gone(pool_blocks: int, *, neighbours: bool) -> tuple[BlockPool, list[int]]:
    """A pool, and the blocks that it gives away though they were kept."""
    evicted: list[int] = []
    return BlockPool(pool_blocks, neighbours=neighbours, on_evict=evicted.append), evicted


@pytest.mark.parametrize("neighbours", [False, True])
def test_kept_blocks_are_given_away_last_and_oldest_first(neighbours: bool) -> None:
    pool, evicted = gone(6, neighbours=neighbours)
    old: list[int] = []
    new: list[int] = []
    for table in (old, new):
        assert pool.extend(table, 2)
        for block in table:
            pool.keep(block)
    first, second = list(old), list(new)
    pool.release(old)
    pool.release(new)
    assert pool.num_free == 6
    for _ in range(2):
        assert pool.extend([], 1)
    assert evicted == []
    for _ in range(4):
        assert pool.extend([], 1)
    assert evicted == [*reversed(first), *reversed(second)]
    assert not pool.is_kept(first[0])


def test_a_shared_block_is_free_once_its_last_owner_is_gone() -> None:
    pool, evicted = gone(2, neighbours=False)
    table: list[int] = []
    pool.extend(table, 1)
    block = table[0]
    pool.share(block)
    assert pool.owners(block) == 2
    pool.keep(block)
    pool.release([block])
    assert pool.num_free == 1
    pool.release(table)
    assert pool.num_free == 2
    pool.share(block)
    assert (pool.num_free, pool.owners(block), evicted) == (1, 1, [])


def test_what_holds_nothing_cannot_be_shared_or_kept() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="block 1 holds nothing"):
        pool.share(1)
    with pytest.raises(ValueError, match="block 1 has no owner"):
        pool.keep(1)


def test_a_run_takes_the_place_of_the_longest_unused() -> None:
    pool, evicted = gone(8, neighbours=True)
    everything: list[int] = []
    pool.extend(everything, 8)
    for block in everything:
        pool.keep(block)
    for part in ([4, 5], [0, 1], [6, 7], [2, 3]):
        pool.release(part)
    assert pool.has_run(3)
    run: list[int] = []
    assert pool.extend(run, 3)
    assert is_contiguous(run)
    # Of all runs of three the one whose newest block was let go of longest ago.
    assert evicted == [4, 5, 6]


def test_runs_and_room_behind() -> None:
    pool = BlockPool(6)
    table: list[int] = []
    pool.extend(table, 2)
    start = table[0]
    assert not pool.has_run(7)
    assert pool.has_run(6 - start - 2)
    assert pool.is_open_behind(table[-1], 6 - table[-1] - 1)
    assert not pool.is_open_behind(table[-1], 6 - table[-1])
    other: list[int] = [table[-1]]
    pool.extend(other, 1)
    assert not pool.is_open_behind(table[-1], 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60), st.booleans())
def test_owners_are_counted_and_evictions_told_once(
    actions: list[tuple[int, int]], neighbours: bool
) -> None:
    pool, evicted = gone(10, neighbours=neighbours)
    tables: list[list[int]] = [[] for _ in range(4)]
    kept: set[int] = set()
    for who, what in actions:
        told = len(evicted)
        if what == 0:
            pool.release(tables[who])
        elif what == 1 and tables[who]:
            pool.keep(tables[who][0])
            kept.add(tables[who][0])
        elif what == 2:
            for block in sorted(kept - set(tables[who]))[:2]:
                pool.share(block)
                tables[who].append(block)
        else:
            pool.extend(tables[who], what)
        fresh = evicted[told:]
        assert set(fresh) <= kept
        kept -= set(fresh)
        named = [block for table in tables for block in table]
        assert [pool.owners(block) for block in range(10)] == [named.count(b) for b in range(10)]
        assert pool.num_free == 10 - len(set(named))
        assert all(pool.is_kept(block) is (block in kept) for block in range(10))
