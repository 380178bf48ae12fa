"""What is compared: arms, each a server and a way to ask it, over the same prompts.

Knows how arms take turns; does not know what becomes of the records.

Arms never run at the same time: they would measure each other. The prompts are parted into blocks,
every block is measured by all arms in turn, and the arm that starts rotates, so that what the
machine does meanwhile hits all arms alike.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from outrider.bench.arrivals import Ramp, arrival_offsets, ramped_offsets
from outrider.bench.client import Ask, Server
from outrider.bench.drafts import DraftCounts
from outrider.bench.load import Block, run_block
from outrider.bench.probe import DraftSource, Profile, spent
from outrider.bench.records import Record
from outrider.bench.samples import Sample

BASELINE: Final = "baseline"
SPECULATION: Final = "speculation"
# A rate alone says nothing of how many requests are under way at once.
_OPEN_LOOP_BLOCKS: Final = 4
_MAX_BLOCKS: Final = 10
_WARM_UP_TOKENS: Final = 16
_WARM_UP: Final = "Count from one to twenty in words, {}."


@dataclass(frozen=True, slots=True)
class Arm:
    """`extra` is merged into each request's body; `k` is the ceiling it asks for, if it does."""

    name: str
    server: Server
    profile: Profile
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_baseline: bool = False
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """When requests are sent, and how often: each of `runs` sends all prompts.

    `block_size` is a number of prompts, None: chosen by the rest. With `ramp` the rate is what it
    says; `request_rate` is infinite then.
    """

    max_concurrency: int | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    seed: int = 0
    block_size: int | None = None
    runs: int = 1
    ramp: Ramp | None = None

    @property
    def open_loop(self) -> bool:
        """Whether requests are due at times of their own."""
        return self.ramp is not None or not math.isinf(self.request_rate)

    def offsets(self, number: int, part: Sequence[tuple[int, Sample]], total: int) -> list[float]:
        """Seconds at which the requests of a run's block `number` are due; `total` is the run's."""
        seed = self.seed + number
        if self.ramp is None:
            return arrival_offsets(
                len(part), self.request_rate, burstiness=self.burstiness, seed=seed
            )
        first = part[0][0] if part else 0
        return ramped_offsets(
            first, len(part), total, self.ramp, burstiness=self.burstiness, seed=seed
        )

    def blocks(self, samples: Sequence[Sample]) -> list[list[tuple[int, Sample]]]:
        """(index, sample) in blocks; a last one too small for the load joins the one before."""
        size = self._size(len(samples))
        result: list[list[tuple[int, Sample]]] = []
        for run in range(self.runs):
            numbered = list(enumerate(samples, run * len(samples)))
            parts = [numbered[i : i + size] for i in range(0, len(numbered), size)]
            if len(parts) > 1 and len(parts[-1]) < min(self.max_concurrency or size, size):
                rest = parts.pop()
                parts[-1] += rest
            result += parts
        return result

    def _size(self, count: int) -> int:
        if self.block_size is not None:
            return self.block_size
        if self.open_loop:
            return max(math.ceil(count / _OPEN_LOOP_BLOCKS), 1)
        if self.max_concurrency is None:
            return max(count, 1)
        if self.max_concurrency == 1:
            return 1
        # Each client gets at least two prompts: when a block ends, some clients wait for others.
        # Where that is one block, which has no spread, one prompt must do.
        each = 2 if count >= 4 * self.max_concurrency else 1
        return max(each * self.max_concurrency, math.ceil(count / _MAX_BLOCKS))


@dataclass(frozen=True, slots=True)
class ArmRun:
    """An arm's blocks, in the order of the prompts, and its drafts where counters tell them."""

    arm: Arm
    blocks: tuple[Block, ...]
    counted: DraftCounts | None = None

    @property
    def records(self) -> list[Record]:
        return [record for block in self.blocks for record in block.records]


async def measure(
    arms: Sequence[Arm],
    samples: Sequence[Sample],
    ask: Ask,
    load: Load,
    *,
    cold: bool = True,
    on_done: Callable[[Arm, Record], None] = lambda arm, record: None,
) -> list[ArmRun]:
    """Each arm's run over all `samples`.

    `cold` keeps an arm from finding its prompts in the prefix cache because another arm sent them
    before (`cache_salt`, where the server takes it).
    """
    run = secrets.token_hex(4)
    blocks: list[list[Block]] = [[] for _ in arms]
    counted: list[DraftCounts | None] = [None for _ in arms]
    for number, part in enumerate(load.blocks(samples)):
        offsets = load.offsets(number, part, load.runs * len(samples))
        for turn in range(len(arms)):
            place = (turn + number) % len(arms)
            arm = arms[place]
            salt = f"bench-{run}-{number}-{place}" if cold else ""
            by_counters = arm.profile.drafts is DraftSource.COUNTERS and not arm.is_baseline
            before = await _counters(arm) if by_counters else None
            block = await _block(arm, part, ask, offsets, load, salt, on_done)
            blocks[place].append(block)
            if by_counters:
                grown = spent(before, await _counters(arm))
                sum_so_far = counted[place] or DraftCounts()
                counted[place] = None if grown is None else sum_so_far.plus(grown)
    return [
        ArmRun(arm, tuple(own), drafts)
        for arm, own, drafts in zip(arms, blocks, counted, strict=True)
    ]


async def warm_up(arms: Sequence[Arm], ask: Ask, count: int, concurrency: int) -> list[Record]:
    """Send `count` short requests to each arm; their records, for what failed."""
    records: list[Record] = []
    short = replace(ask, output_len=min(ask.output_len, _WARM_UP_TOKENS))
    for arm in arms:
        prompts = [
            (i, Sample(f"warm-up {i + 1}", _WARM_UP.format(f"time {i + 1}"))) for i in range(count)
        ]
        load = Load(max_concurrency=concurrency)
        block = await _block(arm, prompts, short, [0.0] * count, load, "", lambda arm, record: None)
        records += block.records
    return records


async def _block(
    arm: Arm,
    part: Sequence[tuple[int, Sample]],
    ask: Ask,
    offsets: Sequence[float],
    load: Load,
    salt: str,
    on_done: Callable[[Arm, Record], None],
) -> Block:
    extra = dict(arm.extra)
    if salt and arm.profile.takes_cache_salt:
        extra["cache_salt"] = salt
    own = replace(ask, running_usage=arm.profile.running_usage)

    async def send(place: int) -> Record:
        index, sample = part[place]
        return await arm.server.record(arm.profile.model, index, sample, own, extra)

    return await run_block(send, offsets, load.max_concurrency, lambda record: on_done(arm, record))


async def _counters(arm: Arm) -> DraftCounts | None:
    return await arm.server.draft_counters(arm.profile.model)
