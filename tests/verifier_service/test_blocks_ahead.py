"""Blocks for the step behind the one that is planned: that one is begun before it is planned."""

from __future__ import annotations

import pytest

from tests.verifier_service.scheduler_bench import Bench, sampling
from verifier_service.engines.base import Chunk, Verdict

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


def test_who_ends_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench(num_blocks=12)
    run.add("a", [1, 2, 3], sampling(max_tokens=6))
    held: list[int] = []
    engine_run = run.engine.run

    def spy(chunks: list[Chunk]) -> list[Verdict | None]:
        held.extend(len(chunk.blocks) for chunk in chunks)
        return engine_run(chunks)

    monkeypatch.setattr(run.engine, "run", spy)
    run.finish()
    # Its last id, the ninth, is never an input; the one before it fills the second block.
    assert max(held) == 2
