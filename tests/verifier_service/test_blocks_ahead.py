"""Blocks for the step behind the one that is planned: that one is begun before it is planned."""

from __future__ import annotations

from tests.verifier_service.scheduler_bench import Bench, sampling
from verifier_service.engines.base import Chunk

SIZE = 4
LONG = sampling(max_tokens=20)


def bench(**changes: object) -> Bench:
    return Bench(guess=None, k=0, block_size=SIZE, **changes)  # type: ignore[arg-type]


def has_room(chunk: Chunk) -> bool:
    """Whether the step behind a round has a block to write to."""
    return chunk.start + len(chunk.ids) < len(chunk.blocks) * SIZE


def test_a_round_that_fills_a_block_has_the_next_one_already() -> None:
    run = bench(num_blocks=12)
    run.add("a", [1, 2, 3], LONG)
    run.add("b", [1], LONG)
    run.step()
    for _ in range(15):
        assert all(map(has_room, run.step()))


def test_nobody_gives_way_for_it() -> None:
    run = bench(num_blocks=4)
    run.add("a", [1, 2, 3], sampling(max_tokens=6))
    run.add("b", [1, 2, 3], sampling(max_tokens=6), salt="b")
    free = []
    while run.scheduler.has_work:
        run.step()
        free.append(run.scheduler.num_free_blocks)
    # Eight ids of each are computed: two blocks for each, and no more, whoever comes first.
    assert run.scheduler.num_preemptions == 0
    assert [len(run.tokens(name)) for name in "ab"] == [6, 6]
    # Both are left for those who need them, until they do.
    assert free[0] == 2


def test_who_ends_gets_none() -> None:
    run = bench(num_blocks=12)
    run.add("a", [1, 2, 3], sampling(max_tokens=5))
    free = []
    while run.scheduler.has_work:
        run.step()
        free.append(run.scheduler.num_free_blocks)
    # Its last id, the eighth, is never an input; the one before it fills no block.
    assert min(free) == 12 - 2
