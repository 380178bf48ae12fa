"""The inputs of a captured step: memory that stays where it is, brought up to date before a replay.

Knows chunks, blocks and buckets; does not know the model. The host's half is pinned and one piece,
so that a step's inputs travel in one copy that nobody waits for. Where each input lies does not
depend on the bucket: what a sequence keeps from step to step (sampling, blocks) is written when it
is new in its row, and again only where it changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.buckets import Bucket
from verifier_service.messages import Sampling
from verifier_service.sampling import is_greedy

# Compiled code and kernels have versions of their own for memory that is not aligned.
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One bucket's inputs, views of the device's memory; T tokens, B sequences, W pages.

    int64: `ids`, `positions`, `slots` (of the cache), `owner` (sequence of a token) [T]; `seeds`,
    `drafts` (draft tokens), `top_k` (0 for no limit) [B]. int32: `cu_query`, `cu_key` [B + 1],
    `used` (keys that a sequence sees) [B], `table` [B, W]. float32: `temperature` (0 for greedy),
    `top_p`, `min_p` (1 and 0 for no limit) [B].

    Where a bucket lists the tokens that have logits: `rows` int64 [R], indices into T, and
    `cu_rows` int32 [B + 1]. `rows` is empty where all have.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    owner: Tensor
    seeds: Tensor
    drafts: Tensor
    top_k: Tensor
    cu_query: Tensor
    cu_key: Tensor
    used: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    rows: Tensor
    cu_rows: Tensor
    table: Tensor


_NAMES = tuple(field.name for field in fields(StepInputs))
_OF_TOKENS = frozenset(("ids", "positions", "slots", "owner"))
_OF_BOUNDS = frozenset(("cu_query", "cu_key", "cu_rows"))
_INT32 = frozenset(("cu_query", "cu_key", "cu_rows", "used", "table"))
_FLOAT32 = frozenset(("temperature", "top_p", "min_p"))


class StepBuffers:
    """Inputs for any bucket of at most `sequences` and `tokens`, over a cache of a given shape.

    `pages` is the most blocks that one sequence's table may have. The cache has one block more
    than its shape says: padding writes there and reads it. Not thread-safe.
    """

    def __init__(
        self, sequences: int, tokens: int, pages: int, cache: CacheShape, device: torch.device
    ) -> None:
        self._size, self._spare = cache.block_size, cache.num_blocks
        self._pages = pages
        shapes: dict[str, tuple[int, ...]] = {}
        for name in _NAMES:
            shapes[name] = (sequences,)
            if name in _OF_TOKENS or name == "rows":
                shapes[name] = (tokens,)
            elif name in _OF_BOUNDS:
                shapes[name] = (sequences + 1,)
        shapes["table"] = (sequences, pages)
        places, self._bytes = _places(shapes)
        pinned = device.type == "cuda"
        self._host = torch.zeros(self._bytes, dtype=torch.uint8, pin_memory=pinned)
        self._device = torch.zeros_like(self._host, device=device) if pinned else self._host
        self._copied = torch.cuda.Event() if pinned else None
        self._inputs = {name: _view(self._device, name, *places[name], shapes) for name in _NAMES}
        self._arrays: dict[str, npt.NDArray[Any]] = {
            name: _view(self._host, name, *places[name], shapes).numpy() for name in _NAMES
        }
        self._count_up = np.arange(max(sequences, tokens) + 1)
        # What stands in each row: of a sequence its sampling and a copy of its blocks.
        self._samplings: list[Sampling] = []
        self._blocks: list[list[int]] = []
        self._forget_sequences(sequences)

    def inputs(self, bucket: Bucket) -> StepInputs:
        """The device's memory, as this bucket reads it."""
        sizes = {
            name: bucket.tokens if name in _OF_TOKENS else bucket.sequences + (name in _OF_BOUNDS)
            for name in _NAMES
        }
        sizes["rows"] = bucket.rows
        return StepInputs(**{name: self._inputs[name][: sizes[name]] for name in _NAMES})

    def fill(self, chunks: Sequence[Chunk], bucket: Bucket) -> None:
        """Write a step's chunks, padded to the bucket, and start the copy.


        Waits for the copy before, should that not have ended.
        """
        if self._copied is not None:
            self._copied.synchronize()
        self._write_sequences(chunks)
        if bucket.query == 1:
            self._write_single_tokens(chunks, bucket)
        else:
            self._write_tokens(chunks, bucket)
        if bucket.rows:
            self._write_rows(chunks, bucket)
        if self._copied is not None:
            self._device.copy_(self._host, non_blocking=True)
            self._copied.record()

    def holds(self, row: int, blocks: Sequence[int]) -> bool:
        """Whether the row's table was filled with these blocks, and maybe more behind them."""
        return self._blocks[row][: len(blocks)] == list(blocks)

    def advance(self, inputs: StepInputs, tokens: Tensor) -> None:
        """Let each sequence of a step without drafts go on with its token [B], on the device alone.

        Padding stays where it is. The host's half is left behind: `fill` writes all of this anew.
        """
        size = self._size
        real = inputs.table[:, 0] != self._spare
        inputs.ids.copy_(tokens)
        inputs.positions.add_(real)
        inputs.used.add_(real)
        page = (inputs.positions // size).unsqueeze(1)
        slots = inputs.table.gather(1, page).squeeze(1) * size + inputs.positions % size
        inputs.slots.copy_(torch.where(real, slots, inputs.slots))
        inputs.cu_key[1:].copy_(inputs.used.cumsum(0))

    def _write_sequences(self, chunks: Sequence[Chunk]) -> None:
        """Sampling and blocks of the rows in which they are not what they were."""
        count = len(chunks)
        if count < len(self._blocks):
            self._forget_sequences(len(self._blocks), count)
        samplings, blocks = self._samplings, self._blocks
        table = self._arrays["table"]
        stale = []
        known = len(blocks)
        for row, chunk in enumerate(chunks):
            now = chunk.blocks
            if row >= known:
                blocks.append(now.copy())
                samplings.append(chunk.sampling)
                table[row, : len(now)] = now
                stale.append(row)
                continue
            if now != blocks[row]:
                blocks[row] = now.copy()
                table[row, : len(now)] = now
            if chunk.sampling is not samplings[row]:
                samplings[row] = chunk.sampling
                stale.append(row)
        if stale:
            self._write_samplings(stale)

    def _write_samplings(self, rows: list[int]) -> None:
        arrays = self._arrays
        samplings = [self._samplings[row] for row in rows]
        greedy = [is_greedy(sampling) for sampling in samplings]
        pairs = list(zip(samplings, greedy, strict=True))
        arrays["seeds"][rows] = [sampling.seed for sampling in samplings]
        arrays["temperature"][rows] = [0.0 if g else s.temperature for s, g in pairs]
        # Limits do not change the most likely token: greedy rows have none, as `pack_rows` says.
        arrays["top_k"][rows] = [0 if g else s.top_k for s, g in pairs]
        arrays["top_p"][rows] = [1.0 if g else s.top_p for s, g in pairs]
        arrays["min_p"][rows] = [0.0 if g else s.min_p for s, g in pairs]

    def _forget_sequences(self, end: int, begin: int = 0) -> None:
        """Make rows from `begin` to `end` padding."""
        del self._samplings[begin:], self._blocks[begin:]
        arrays, rows = self._arrays, slice(begin, end)
        arrays["table"][rows, 0] = self._spare
        arrays["temperature"][rows] = arrays["top_k"][rows] = arrays["min_p"][rows] = 0
        arrays["top_p"][rows] = 1.0

    def _write_single_tokens(self, chunks: Sequence[Chunk], bucket: Bucket) -> None:
        """Every sequence has one token, padding too."""
        arrays, b, count = self._arrays, bucket.sequences, len(chunks)
        up = self._count_up
        positions = arrays["positions"]
        positions[:count] = [chunk.start for chunk in chunks]
        arrays["ids"][:count] = [chunk.ids[0] for chunk in chunks]
        arrays["owner"][:b] = up[:b]
        arrays["drafts"][:b] = 0
        arrays["cu_query"][: b + 1] = up[: b + 1]
        self._write_slots(count, up[:count])
        self._write_padding(count, b)
        arrays["used"][:count] = positions[:count] + 1
        self._write_contexts(count, b)

    def _write_tokens(self, chunks: Sequence[Chunk], bucket: Bucket) -> None:
        """Sequences have several tokens, padding has none."""
        arrays, b, count = self._arrays, bucket.sequences, len(chunks)
        lengths = np.array([len(chunk.ids) for chunk in chunks], dtype=np.int64)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        ids = list(chain.from_iterable([chunk.ids for chunk in chunks]))
        tokens = len(ids)
        owner = np.repeat(self._count_up[:count], lengths)
        bounds = arrays["cu_query"]
        lengths.cumsum(out=bounds[1 : count + 1])
        bounds[count + 1 : b + 1] = tokens
        arrays["ids"][:tokens] = ids
        arrays["owner"][:tokens] = owner
        arrays["positions"][:tokens] = (starts - bounds[:count])[owner] + self._count_up[:tokens]
        arrays["drafts"][:count] = [chunk.drafts for chunk in chunks]
        arrays["drafts"][count:b] = 0
        self._write_slots(tokens, owner)
        self._write_padding(tokens, bucket.tokens)
        arrays["owner"][tokens : bucket.tokens] = 0
        arrays["used"][:count] = starts + lengths
        self._write_contexts(count, b)

    def _write_rows(self, chunks: Sequence[Chunk], bucket: Bucket) -> None:
        """The last tokens of each sequence that chooses: one, and one more for each draft."""
        arrays, count = self._arrays, len(chunks)
        told = [chunk.drafts + 1 if chunk.samples else 0 for chunk in chunks]
        counts = np.array(told, dtype=np.int64)
        bounds = arrays["cu_rows"]
        counts.cumsum(out=bounds[1 : count + 1])
        end = bounds[count]
        bounds[count + 1 : bucket.sequences + 1] = end
        owner = np.repeat(self._count_up[:count], counts)
        behind = arrays["cu_query"][1 : count + 1] - bounds[1 : count + 1]
        arrays["rows"][:end] = behind[owner] + self._count_up[:end]
        arrays["rows"][end : bucket.rows] = 0

    def _write_slots(self, tokens: int, owner: npt.NDArray[np.int64]) -> None:
        page, offset = np.divmod(self._arrays["positions"][:tokens], self._size)
        self._arrays["slots"][:tokens] = self._arrays["table"][owner, page] * self._size + offset

    def _write_padding(self, begin: int, end: int) -> None:
        arrays, tokens = self._arrays, slice(begin, end)
        arrays["ids"][tokens] = arrays["positions"][tokens] = 0
        arrays["slots"][tokens] = self._spare * self._size

    def _write_contexts(self, count: int, sequences: int) -> None:
        """How many keys padding sees, and the bounds of all contexts."""
        used = self._arrays["used"]
        used[count:sequences] = 1
        used[:sequences].cumsum(out=self._arrays["cu_key"][1 : sequences + 1])


def _places(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, tuple[int, int]], int]:
    """First and last byte of each input, and the size of all."""
    places, end = {}, 0
    for name, shape in shapes.items():
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + int(np.prod(shape)) * _kind(name).itemsize
        places[name] = begin, end
    return places, end


def _view(
    memory: Tensor, name: str, begin: int, end: int, shapes: dict[str, tuple[int, ...]]
) -> Tensor:
    return memory[begin:end].view(_kind(name)).view(shapes[name])


def _kind(name: str) -> torch.dtype:
    if name in _INT32:
        return torch.int32
    return torch.float32 if name in _FLOAT32 else torch.int64
