"""When requests are sent: arrivals, the cap on concurrency, blocks and turns."""

from __future__ import annotations

import asyncio
import math
import statistics
from itertools import pairwise

import pytest

from outrider.bench.arms import Load
from outrider.bench.arrivals import Ramp, Strategy, arrival_offsets, ramped_offsets
from outrider.bench.load import Block, run_block
from outrider.bench.records import Record
from outrider.bench.samples import Sample
from tests.outrider.bench.virtual import run


def block_of(seconds: list[float], offsets: list[float], cap: int | None) -> Block:
    """Requests that take so long, sent when they are due."""

    async def send(place: int) -> Record:
        sent = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds[place])
        return Record(place, "s", sent)

    async def whole() -> Block:
        return await run_block(send, offsets, cap, done.append)

    done: list[Record] = []
    block = run(whole())
    assert sorted(record.index for record in done) == list(range(len(offsets)))
    return block


def sent(block: Block) -> list[float]:
    return [record.sent for record in block.records]


def test_without_a_cap_all_are_sent_when_due() -> None:
    block = block_of([2.0, 2.0, 2.0], [0.0, 0.5, 1.5], None)
    assert sent(block) == [0.0, 0.5, 1.5]
    assert (block.duration, block.peak) == (3.5, 3)


def test_a_closed_loop_sends_the_next_when_one_is_answered() -> None:
    block = block_of([3.0, 1.0, 1.0, 1.0], [0.0] * 4, 2)
    assert sent(block) == [0.0, 0.0, 1.0, 2.0]
    assert (block.duration, block.peak) == (3.0, 2)


def test_a_cap_delays_what_is_due() -> None:
    block = block_of([2.0, 1.0], [0.0, 1.0], 1)
    assert sent(block) == [0.0, 2.0]


def test_records_come_in_the_order_of_the_prompts() -> None:
    block = block_of([3.0, 1.0, 2.0], [0.0] * 3, None)
    assert [record.index for record in block.records] == [0, 1, 2]


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_offsets(4, math.inf) == [0.0] * 4
    assert arrival_offsets(0, 2.0) == []
    assert arrival_offsets(1, 2.0) == [0.0]


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 5.0])
def test_arrivals_keep_the_rate(burstiness: float) -> None:
    offsets = arrival_offsets(201, 4.0, burstiness=burstiness, seed=1)
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert offsets[-1] == pytest.approx(50)


def test_burstiness_is_the_scatter() -> None:
    def scatter(burstiness: float) -> float:
        offsets = arrival_offsets(4001, 1.0, burstiness=burstiness, seed=2)
        gaps = [b - a for a, b in pairwise(offsets)]
        return statistics.pstdev(gaps) / statistics.fmean(gaps)

    # A gamma distribution's deviation is its mean over the root of its shape.
    assert scatter(0.25) == pytest.approx(2.0, rel=0.1)
    assert scatter(1.0) == pytest.approx(1.0, rel=0.1)
    assert scatter(16.0) == pytest.approx(0.25, rel=0.1)


def test_infinite_burstiness_is_even() -> None:
    assert arrival_offsets(4, 2.0, burstiness=math.inf) == pytest.approx([0, 0.5, 1, 1.5])


@pytest.mark.parametrize(
    ("strategy", "rates"),
    [(Strategy.LINEAR, [1.0, 6.0, 11.0, 16.0]), (Strategy.EXPONENTIAL, [1.0, 2.52, 6.35, 16.0])],
)
def test_a_ramp_goes_from_its_start_to_its_end(strategy: Strategy, rates: list[float]) -> None:
    ramp = Ramp(strategy, 1.0, 16.0)
    assert [ramp.rate(i / 3) for i in range(4)] == pytest.approx(rates, rel=1e-3)
    offsets = ramped_offsets(0, 4, 4, ramp, burstiness=math.inf)
    assert [1 / (b - a) for a, b in pairwise(offsets)] == pytest.approx(rates[1:], rel=1e-3)


def test_a_ramp_goes_on_from_block_to_block() -> None:
    load = Load(burstiness=math.inf, ramp=Ramp(Strategy.LINEAR, 1.0, 8.0), block_size=4)
    parts = load.blocks([Sample(str(i)) for i in range(8)])
    first, second = (load.offsets(number, part, 8) for number, part in enumerate(parts))
    assert first[1] == pytest.approx(1 / 2)
    assert second[-1] - second[-2] == pytest.approx(1 / 8)
    # The gaps of a block are the same for every arm, and others than the next block's.
    scattered = Load(ramp=Ramp(Strategy.LINEAR, 1.0, 1.0), seed=3)
    assert scattered.offsets(0, parts[0], 8) == scattered.offsets(0, parts[0], 8)
    assert scattered.offsets(0, parts[0], 8) != scattered.offsets(1, parts[0], 8)


def test_arrivals_depend_on_the_seed_only() -> None:
    assert arrival_offsets(9, 1.0, seed=3) == arrival_offsets(9, 1.0, seed=3)
    assert arrival_offsets(9, 1.0, seed=3) != arrival_offsets(9, 1.0, seed=4)


def sizes(load: Load, count: int) -> list[int]:
    return [len(part) for part in load.blocks([Sample(str(i)) for i in range(count)])]


@pytest.mark.parametrize(
    ("load", "count", "expected"),
    [
        (Load(max_concurrency=1), 3, [1, 1, 1]),
        (Load(max_concurrency=4), 40, [8] * 5),
        (Load(max_concurrency=4), 200, [20] * 10),
        # Fewer than the clients are left: they join the block before.
        (Load(max_concurrency=8), 35, [16, 19]),
        (Load(max_concurrency=8), 5, [5]),
        # Two prompts for each client would leave a single block, which has no spread.
        (Load(max_concurrency=8), 20, [8, 12]),
        (Load(), 40, [40]),
        (Load(request_rate=2.0), 40, [10] * 4),
        (Load(ramp=Ramp(Strategy.LINEAR, 1.0, 2.0)), 40, [10] * 4),
        (Load(max_concurrency=2, block_size=3), 8, [3, 3, 2]),
        (Load(max_concurrency=4, runs=2), 16, [8] * 4),
        (Load(), 0, []),
    ],
)
def test_blocks_fit_the_load(load: Load, count: int, expected: list[int]) -> None:
    assert sizes(load, count) == expected


def test_every_prompt_is_in_one_block_of_each_run() -> None:
    samples = [Sample(str(i)) for i in range(35)]
    numbered = [pair for part in Load(max_concurrency=8, runs=2).blocks(samples) for pair in part]
    assert [index for index, _ in numbered] == list(range(70))
    assert [sample.name for _, sample in numbered] == [str(i % 35) for i in range(70)]
