"""The inputs of a captured step: memory that stays where it is, filled anew before each replay.

Knows chunks, blocks and buckets; does not know the model. The host's half is pinned, so that one
step's inputs travel in three copies that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.buckets import Bucket
from verifier_service.sampling import is_greedy


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One bucket's inputs, views of the device's memory; T tokens, B sequences, W pages.

    int64: `ids`, `positions`, `slots` (of the cache), `owner` (sequence of a token) [T]; `seeds`,
    `drafts` (draft tokens) [B]. int32: `cu_query`, `cu_key` [B + 1], `used` (keys that a sequence
    sees) [B], `table` [B, W]. float32: `temperature` [B], 0 for greedy.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    owner: Tensor
    seeds: Tensor
    drafts: Tensor
    cu_query: Tensor
    cu_key: Tensor
    used: Tensor
    table: Tensor
    temperature: Tensor


class StepBuffers:
    """Inputs for any bucket of at most `sequences` and `tokens`, over a cache of a given shape.

    `pages` is the most blocks that one sequence's table may have. The cache has one block more
    than its shape says: padding writes there and reads it.
    """

    def __init__(
        self, sequences: int, tokens: int, pages: int, cache: CacheShape, device: torch.device
    ) -> None:
        self._cache = cache
        self._pages = pages
        sizes = (4 * tokens + 2 * sequences, 3 * sequences + 2 + sequences * pages, sequences)
        kinds = (torch.int64, torch.int32, torch.float32)
        pinned = device.type == "cuda"
        self._host = [
            torch.zeros(size, dtype=kind, pin_memory=pinned)
            for size, kind in zip(sizes, kinds, strict=True)
        ]
        self._device = (
            [torch.zeros_like(part, device=device) for part in self._host] if pinned else self._host
        )
        self._longs, self._ints, self._floats = (part.numpy() for part in self._host)

    def inputs(self, bucket: Bucket) -> StepInputs:
        """The device's memory, as this bucket reads it."""
        longs, ints, floats = self._device
        t, b = bucket.tokens, bucket.sequences
        return StepInputs(
            ids=longs[:t],
            positions=longs[t : 2 * t],
            slots=longs[2 * t : 3 * t],
            owner=longs[3 * t : 4 * t],
            seeds=longs[4 * t : 4 * t + b],
            drafts=longs[4 * t + b : 4 * t + 2 * b],
            cu_query=ints[: b + 1],
            cu_key=ints[b + 1 : 2 * b + 2],
            used=ints[2 * b + 2 : 3 * b + 2],
            table=ints[3 * b + 2 : 3 * b + 2 + b * self._pages].view(b, self._pages),
            temperature=floats[:b],
        )

    def fill(self, chunks: Sequence[Chunk], bucket: Bucket) -> None:
        """Write a step's chunks, padded to the bucket, and start the copies to the device.

        The copy of the step before must have ended: its result was read.
        """
        t, b = bucket.tokens, bucket.sequences
        size = self._cache.block_size
        spare = self._cache.num_blocks
        longs, ints, floats = self._longs, self._ints, self._floats
        ids, positions, slots, owner = (longs[n * t : (n + 1) * t] for n in range(4))
        seeds, drafts = longs[4 * t : 4 * t + b], longs[4 * t + b : 4 * t + 2 * b]
        cu_query, cu_key = ints[: b + 1], ints[b + 1 : 2 * b + 2]
        used = ints[2 * b + 2 : 3 * b + 2]
        table = ints[3 * b + 2 : 3 * b + 2 + b * self._pages].reshape(b, self._pages)
        end = 0
        for row, chunk in enumerate(chunks):
            begin, end = end, end + len(chunk.ids)
            ids[begin:end] = chunk.ids
            owner[begin:end] = row
            context = chunk.start + len(chunk.ids)
            if end - begin == 1:
                # By far the most frequent, and arrays of one cost more than their sum.
                positions[begin] = chunk.start
                slots[begin] = chunk.blocks[chunk.start // size] * size + chunk.start % size
            else:
                place = np.arange(chunk.start, context)
                positions[begin:end] = place
                slots[begin:end] = np.asarray(chunk.blocks)[place // size] * size + place % size
            table[row, : len(chunk.blocks)] = chunk.blocks
            used[row] = context
            drafts[row] = chunk.drafts
            seeds[row] = chunk.sampling.seed
            floats[row] = 0.0 if is_greedy(chunk.sampling) else chunk.sampling.temperature
            cu_query[row + 1] = end
        cu_query[0] = 0
        self._pad(bucket, len(chunks), end, (ids, positions, slots, owner), spare * size)
        padding = slice(len(chunks), b)
        table[padding, 0] = spare
        used[padding] = 1
        drafts[padding] = 0
        floats[padding] = 0.0
        cu_query[len(chunks) + 1 :] = (
            np.arange(len(chunks) + 1, b + 1) if bucket.query == 1 else end
        )
        cu_key[0] = 0
        np.cumsum(used, out=cu_key[1:])
        for host, device in zip(self._host, self._device, strict=True):
            if host is not device:
                count = _used_size(host, bucket, self._pages)
                device[:count].copy_(host[:count], non_blocking=True)

    def advance(self, inputs: StepInputs, tokens: Tensor) -> None:
        """Let each sequence of a step without drafts go on with its token [B], on the device alone.

        Padding stays where it is.
        """
        size = self._cache.block_size
        real = inputs.table[:, 0] != self._cache.num_blocks
        inputs.ids.copy_(tokens)
        inputs.positions.add_(real)
        inputs.used.add_(real)
        page = (inputs.positions // size).unsqueeze(1)
        slots = inputs.table.gather(1, page).squeeze(1) * size + inputs.positions % size
        inputs.slots.copy_(torch.where(real, slots, inputs.slots))
        inputs.cu_key[1:].copy_(inputs.used.cumsum(0))

    def _pad(
        self,
        bucket: Bucket,
        sequences: int,
        end: int,
        tokens: tuple[npt.NDArray[np.int64], ...],
        spare_slot: int,
    ) -> None:
        ids, positions, slots, owner = tokens
        ids[end:] = 0
        positions[end:] = 0
        slots[end:] = spare_slot
        owner[end:] = np.arange(sequences, bucket.sequences) if bucket.query == 1 else 0


def _used_size(host: Tensor, bucket: Bucket, pages: int) -> int:
    if host.dtype == torch.int64:
        return 4 * bucket.tokens + 2 * bucket.sequences
    if host.dtype == torch.int32:
        return 3 * bucket.sequences + 2 + bucket.sequences * pages
    return bucket.sequences
