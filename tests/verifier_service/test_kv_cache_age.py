"""Blocks are taken by age: empty ones, then those let go of longest ago, shared or not."""

from __future__ import annotations

import random

import pytest

from verifier_service.kv_cache import BlockPool


class Model:
    """The same pool by its definition: stamps of free blocks, looked through each time."""

    def __init__(self, num_blocks: int) -> None:
        self.owners = [0] * num_blocks
        self.stamps = [0] * num_blocks
        self.clock = 0

    def expected(self, count: int) -> list[int]:
        free = [block for block, owners in enumerate(self.owners) if not owners]
        return sorted(self.stamps[block] for block in free)[:count]

    def tick(self) -> int:
        self.clock += 1
        return self.clock


@pytest.mark.parametrize("seed", range(8))
def test_any_history_gives_away_the_oldest(seed: int) -> None:
    rng = random.Random(seed)
    evicted: list[int] = []
    pool = BlockPool(24, neighbours=False, on_evict=evicted.append)
    model = Model(24)
    tables: list[list[int]] = []
    for _ in range(600):
        kept_free = [b for b in range(24) if not model.owners[b] and model.stamps[b]]
        action = rng.randrange(4)
        if action == 0:
            count = rng.randrange(1, 5)
            expected = model.expected(count)
            table: list[int] = []
            evicted.clear()
            if not pool.extend(table, count):
                assert len(expected) < count
                continue
            assert [model.stamps[block] for block in table] == expected
            assert evicted == [block for block in table if model.stamps[block]]
            for block in table:
                assert not model.owners[block]
                model.owners[block], model.stamps[block] = 1, 0
            tables.append(table)
        elif action == 1 and tables:
            for block in tables[rng.randrange(len(tables))]:
                if rng.random() < 0.7:
                    pool.keep(block)
                    model.stamps[block] = model.tick()
        elif action == 2 and kept_free:
            block = rng.choice(kept_free)
            pool.share(block)
            model.owners[block] += 1
            tables.append([block])
        elif tables:
            table = tables.pop(rng.randrange(len(tables)))
            for block in reversed(table):
                model.owners[block] -= 1
                if not model.owners[block] and model.stamps[block]:
                    model.stamps[block] = model.tick()
            pool.release(table)
        assert pool.num_free == model.owners.count(0)


def test_a_block_that_is_shared_again_and_again_leaves_no_trail() -> None:
    pool = BlockPool(8, neighbours=False)
    table: list[int] = []
    assert pool.extend(table, 1)
    (block,) = table
    pool.keep(block)
    pool.release(table)
    for _ in range(200):
        pool.share(block)
        pool.release([block])
    assert len(pool._aged) <= 2 * pool.num_blocks + 1
    assert pool.extend(table, 8)
    assert table[-1] == block
