"""What a captured step reads: brought up to date, it is what a first filling would write."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier_service.engines import step_buffers
from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.buckets import Bucket, Buckets
from verifier_service.engines.step_buffers import StepBuffers
from verifier_service.engines.step_inputs import StepInputs
from verifier_service.messages import Sampling

CACHE = CacheShape(num_blocks=60, block_size=4)
SEQUENCES, QUERY, PAGES = 6, 5, 9
BUCKETS = Buckets(SEQUENCES, QUERY, 1 << 10)
SAMPLINGS = [
    Sampling(temperature=0.0, seed=3),
    Sampling(temperature=0.7, seed=-(1 << 63)),
    Sampling(temperature=1.3, seed=(1 << 63) - 1, top_k=7, top_p=0.9, min_p=0.05),
    Sampling(temperature=1.3, seed=5, top_k=1, top_p=0.5, min_p=0.5),
]


def buffers() -> StepBuffers:
    tokens = max(bucket.tokens for bucket in BUCKETS)
    return StepBuffers(SEQUENCES, tokens, PAGES, CACHE, torch.device("cpu"))


def bucket_of(chunks: list[Chunk]) -> Bucket:
    bucket = BUCKETS.find(len(chunks), sum(len(chunk.ids) for chunk in chunks))
    assert bucket is not None
    return bucket


def read(inputs: StepInputs, chunks: list[Chunk]) -> dict[str, object]:
    """All that a replay may read: of tables what holds a key, of unused limits nothing."""
    seen: dict[str, object] = {
        field.name: getattr(inputs, field.name).tolist() for field in fields(StepInputs)
    }
    held = [len(chunk.blocks) for chunk in chunks] + [1] * (len(inputs.table) - len(chunks))
    table = inputs.table.tolist()
    seen["table"] = [row[:count] for row, count in zip(table, held, strict=True)]
    if not seen["rows"]:
        del seen["cu_rows"]
    seen["seeds"] = inputs.seeds.tolist()[: len(chunks)]
    return seen


def expected(chunks: list[Chunk], bucket: Bucket) -> dict[str, object]:
    """The same by definition, token by token."""
    size, spare = CACHE.block_size, CACHE.num_blocks
    single = bucket.query == 1
    rows: dict[str, list[object]] = {field.name: [] for field in fields(StepInputs)}
    bounds = [0]
    chosen: list[list[int]] = []
    for row, chunk in enumerate(chunks):
        for at, token in enumerate(chunk.ids, start=chunk.start):
            rows["ids"].append(token)
            rows["positions"].append(at)
            rows["slots"].append(chunk.blocks[at // size] * size + at % size)
            rows["owner"].append(row)
        bounds.append(bounds[-1] + len(chunk.ids))
        sampling = chunk.sampling
        greedy = sampling.temperature == 0 or sampling.top_k == 1
        rows["seeds"].append(sampling.seed)
        rows["drafts"].append(chunk.drafts)
        rows["used"].append(chunk.start + len(chunk.ids))
        rows["temperature"].append(0.0 if greedy else sampling.temperature)
        rows["top_k"].append(0 if greedy else sampling.top_k)
        rows["top_p"].append(1.0 if greedy else sampling.top_p)
        rows["min_p"].append(0.0 if greedy else sampling.min_p)
        rows["table"].append(chunk.blocks)
        chosen.append(list(range(bounds[-1] - chunk.drafts - 1, bounds[-1])))
        if not chunk.samples:
            chosen[-1] = []
    for row in range(len(chunks), bucket.sequences):
        bounds.append(bounds[-1] + single)
        for name, value in (("drafts", 0), ("used", 1), ("temperature", 0.0), ("top_k", 0)):
            rows[name].append(value)
        rows["top_p"].append(1.0)
        rows["min_p"].append(0.0)
        rows["table"].append([spare])
        if single:
            rows["owner"].append(row)
    padding = bucket.tokens - len(rows["ids"])
    for name, value in (("ids", 0), ("positions", 0), ("slots", spare * size)):
        rows[name] += [value] * padding
    rows["owner"] += [0] * (bucket.tokens - len(rows["owner"]))
    rows["cu_query"] += bounds
    rows["cu_key"].append(0)
    for used in rows["used"]:
        rows["cu_key"].append(rows["cu_key"][-1] + used)  # type: ignore[operator]
    listed = [token for tokens in chosen for token in tokens]
    if bucket.rows:
        rows["rows"] += listed + [0] * (bucket.rows - len(listed))
        counts = [len(tokens) for tokens in chosen] + [0] * (bucket.sequences - len(chunks))
        rows["cu_rows"] += [0, *accumulate(counts)]
    else:
        del rows["cu_rows"]
    for name in ("temperature", "top_p", "min_p"):
        rows[name] = torch.tensor(rows[name], dtype=torch.float32).tolist()
    return dict(rows)


@dataclass
class Live:
    """A sequence as a scheduler has it: its list of blocks is one object that changes."""

    start: int
    blocks: list[int]
    sampling: Sampling


class World:
    """Sequences that come, grow, change places, lose their blocks and go."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.running: list[Live] = []

    def change(self) -> None:
        source = self.source
        for live in self.running:
            event = source.random()
            if event < 0.15:
                # Preempted and admitted again, in the same list, at a beginning of its ids.
                live.start = source.randrange(live.start + 1)
                live.blocks.clear()
                live.blocks += self.blocks(live.start // CACHE.block_size + 3)
            elif event < 0.3:
                live.blocks[source.randrange(len(live.blocks))] = source.randrange(60)
            elif event < 0.4:
                live.sampling = source.choice(SAMPLINGS)
            elif event < 0.5:
                live.blocks = live.blocks.copy()
        if source.random() < 0.3:
            source.shuffle(self.running)
        if self.running and source.random() < 0.3:
            self.running.pop(source.randrange(len(self.running)))
        while len(self.running) < SEQUENCES and source.random() < 0.4:
            self.running.append(Live(source.randrange(9), self.blocks(4), source.choice(SAMPLINGS)))

    def blocks(self, count: int) -> list[int]:
        return [self.source.randrange(60) for _ in range(count)]

    def chunks(self) -> list[Chunk]:
        """A step of all of them, after which each has as many ids more as it computed."""
        plain = self.source.random() < 0.4
        chunks = []
        for live in self.running:
            count = 1 if plain else self.source.randint(1, QUERY)
            while len(live.blocks) * CACHE.block_size < live.start + count:
                live.blocks.append(self.source.randrange(60))
            if len(live.blocks) > PAGES - 2:
                live.start, live.blocks = 0, self.blocks(2)
            ids = [self.source.randrange(1000) for _ in range(count)]
            chunks.append(Chunk(ids, live.start, live.blocks, count - 1, True, live.sampling))
            live.start += self.source.randint(1, count)
        return chunks


def as_prompt(chunk: Chunk, source: random.Random) -> Chunk:
    """The same tokens, fewer of them drafts; some choose nothing."""
    return replace(
        chunk, drafts=source.randint(0, chunk.drafts), samples=bool(source.getrandbits(1))
    )


@pytest.mark.parametrize("few", [0, 10, 192])
@settings(max_examples=10, deadline=None)
@given(source=st.randoms(use_true_random=False))
def test_a_step_after_others_reads_what_a_first_step_would(few: int, source: random.Random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_buffers, "_FEW_TOKENS", few)
        run_steps(source)


def run_steps(source: random.Random) -> None:
    kept, world = buffers(), World(source)
    for _ in range(12):
        world.change()
        if not world.running:
            continue
        chunks = world.chunks()
        bucket = bucket_of(chunks)
        if source.random() < 0.4:
            bucket = Bucket(SEQUENCES, 30, 30, rows=30, listed_drafts=QUERY - 1)
            chunks = [as_prompt(chunk, source) for chunk in chunks]
        kept.fill(chunks, bucket)
        assert read(kept.inputs(bucket), chunks) == expected(chunks, bucket)


def test_what_a_replay_changed_on_the_device_is_written_again() -> None:
    kept = buffers()
    blocks = [8, 3, 5]
    first = [Chunk([7], 3, blocks, 0, True, SAMPLINGS[1])]
    bucket = bucket_of(first)
    inputs = kept.inputs(bucket)
    kept.fill(first, bucket)
    kept.advance(inputs, torch.tensor([42, 0]))
    ahead = [Chunk([42], 4, blocks, 0, True, SAMPLINGS[1])]
    assert read(inputs, ahead) == expected(ahead, bucket)
    kept.fill(first, bucket)
    assert read(inputs, first) == expected(first, bucket)


def test_padding_is_padding_again_behind_what_a_replay_wrote_there() -> None:
    kept = buffers()
    chunks = [Chunk([7], 3, [8, 3], 0, True, SAMPLINGS[1]) for _ in range(3)]
    bucket = bucket_of(chunks)
    inputs = kept.inputs(bucket)
    kept.fill(chunks, bucket)
    kept.advance(inputs, torch.full((bucket.sequences,), 42))
    kept.fill(chunks, bucket)
    assert read(inputs, chunks) == expected(chunks, bucket)
    drafting = [Chunk([1, 2], 3, [8, 3], 1, True, SAMPLINGS[1])]
    wide = Bucket(bucket.sequences, 12, QUERY)
    kept.fill(drafting, wide)
    assert read(kept.inputs(wide), drafting) == expected(drafting, wide)


def test_blocks_are_held_as_they_were_filled() -> None:
    kept = buffers()
    blocks = [8, 3]
    chunks = [Chunk([7], 3, blocks, 0, True, SAMPLINGS[1])]
    kept.fill(chunks, bucket_of(chunks))
    assert kept.holds([(8, 3)]) and kept.holds([(8,)])
    assert not kept.holds([(3,)])
    blocks.append(9)
    assert not kept.holds([tuple(blocks)]), "the device has not heard of it"
    kept.fill(chunks, bucket_of(chunks))
    assert kept.holds([tuple(blocks)])


def test_every_input_is_aligned_for_compiled_code() -> None:
    kept = buffers()
    bucket = Bucket(4, 12, 5)
    begin = kept.inputs(bucket).ids.data_ptr()
    for field in fields(StepInputs):
        assert (getattr(kept.inputs(bucket), field.name).data_ptr() - begin) % 16 == 0


def test_all_buckets_read_the_same_memory() -> None:
    kept = buffers()
    small, large = (kept.inputs(bucket) for bucket in (Bucket(2, 2, 1), Bucket(6, 30, 5)))
    for field in fields(StepInputs):
        assert getattr(small, field.name).data_ptr() == getattr(large, field.name).data_ptr()
