"""The inputs of a captured step: memory that stays where it is, brought up to date before a replay.

Knows chunks, blocks and buckets; does not know the model, nor where an input lies. What a sequence
keeps from step to step (sampling, blocks) is written when it is new in its row, and again only
where it changed; so is padding. Between two steps the host's code is cold, and a call into numpy
takes several times what it takes in a loop: there are few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.buckets import Bucket
from verifier_service.engines.step_inputs import StepInputs, StepMemory
from verifier_service.messages import Sampling
from verifier_service.sampling import is_greedy

# Up to so many tokens, lists are written faster than numpy is called.
_FEW_TOKENS = 192


class StepBuffers:
    """Inputs for any bucket of at most `sequences` and `tokens`, over a cache of a given shape.

    `pages` is the most blocks that one sequence's table may have. The cache has one block more
    than its shape says: padding writes there and reads it. Not thread-safe.
    """

    def __init__(
        self, sequences: int, tokens: int, pages: int, cache: CacheShape, device: torch.device
    ) -> None:
        self._size, self._spare = cache.block_size, cache.num_blocks
        memory = StepMemory(sequences, tokens, pages, device)
        self._memory, self._arrays = memory, memory.arrays
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._tokens, self._contexts = memory.of_tokens, memory.contexts
        self._count_up = np.arange(max(sequences, tokens) + 1)
        # What a token of padding has.
        self._padding = np.array([[0], [0], [self._spare * self._size], [0]])
        self._tokens[:] = self._padding
        # Behind so many tokens there is padding only.
        self._written = 0
        # Sequences with one token each, and padding's, as they stand here; None where others do.
        self._single: tuple[int, int] | None = None
        # What stands in each row: of a sequence its sampling and a copy of its blocks.
        self._samplings: list[Sampling] = []
        self._blocks: list[list[int]] = []
        self._held: list[tuple[int, ...]] = []
        self._forget_sequences(sequences)

    def inputs(self, bucket: Bucket) -> StepInputs:
        """The device's memory, as this bucket reads it."""
        return self._memory.inputs(bucket)

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
            self._memory.copy()
            self._copied.record()

    def holds(self, tables: Iterable[tuple[int, ...]]) -> bool:
        """Whether the first rows' tables were filled with these blocks, and maybe more behind."""
        held = self._held
        return all(held[row][: len(blocks)] == blocks for row, blocks in enumerate(tables))

    def take_tokens(self, inputs: StepInputs, tokens: Tensor, rows: Sequence[int]) -> None:
        """Let the first sequences, of one token each, have those of `tokens` in these `rows`.

        On the device alone; the host's half does not know of it.
        """
        count = len(rows)
        if rows[-1] == count - 1:
            chosen = tokens[:count]
        else:
            # Not from memory that the host could only copy from by waiting for the device.
            at = torch.tensor(rows, pin_memory=self._copied is not None)
            chosen = tokens[at.to(tokens.device, non_blocking=True)]
        inputs.ids[:count].copy_(chosen)

    def advance(self, inputs: StepInputs, tokens: Tensor) -> None:
        """Let each sequence of a step without drafts go on with its token [B], on the device alone.

        Padding stays where it is. The host's half is left behind: `fill` writes all of this anew.
        """
        # Where the host's half is the device's, padding was written to as well.
        self._single = None
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
        blocks = [chunk.blocks for chunk in chunks]
        if blocks != self._blocks:
            self._write_blocks(blocks)
        samplings = [chunk.sampling for chunk in chunks]
        if samplings != self._samplings:
            known = len(self._samplings)
            stale = [
                row
                for row, sampling in enumerate(samplings)
                if row >= known or sampling is not self._samplings[row]
            ]
            self._write_samplings(stale, [samplings[row] for row in stale])
        # Even where they are equal: what is the same object is compared for nothing.
        self._samplings = samplings

    def _write_blocks(self, blocks: Sequence[list[int]]) -> None:
        table, known = self._arrays["table"], len(self._blocks)
        for row, now in enumerate(blocks):
            if row < known and now == self._blocks[row]:
                continue
            self._blocks[row : row + 1] = [now.copy()]
            self._held[row : row + 1] = [tuple(now)]
            table[row, : len(now)] = now

    def _write_samplings(self, rows: list[int], samplings: list[Sampling]) -> None:
        arrays = self._arrays
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
        del self._samplings[begin:], self._blocks[begin:], self._held[begin:]
        arrays, rows = self._arrays, slice(begin, end)
        arrays["table"][rows, 0] = self._spare
        arrays["temperature"][rows] = arrays["top_k"][rows] = arrays["min_p"][rows] = 0
        arrays["top_p"][rows] = 1.0
        arrays["drafts"][rows] = 0

    def _write_single_tokens(self, chunks: Sequence[Chunk], bucket: Bucket) -> None:
        """Every sequence has one token, padding too."""
        b, count, size = bucket.sequences, len(chunks), self._size
        if self._single != (count, b):
            self._begin_single_tokens(count, b)
        starts = [chunk.start for chunk in chunks]
        slots = [chunk.blocks[chunk.start // size] * size + chunk.start % size for chunk in chunks]
        self._tokens[:3, :count] = [chunk.ids[0] for chunk in chunks], starts, slots
        used = [start + 1 for start in starts] + [1] * (b - count)
        self._contexts[1:, : b + 1] = list(accumulate(used, initial=0)), [*used, 1]

    def _begin_single_tokens(self, count: int, b: int) -> None:
        """What is the same in all steps of so many sequences, and padding."""
        up, arrays = self._count_up, self._arrays
        self._tokens[:, count : max(b, self._written)] = self._padding
        arrays["owner"][:b] = up[:b]
        arrays["cu_query"][: b + 1] = up[: b + 1]
        arrays["drafts"][:b] = 0
        # Of the padding behind the sequences, too, tokens have owners.
        self._written = b
        self._single = count, b

    def _write_tokens(self, chunks: Sequence[Chunk], bucket: Bucket) -> None:
        """Sequences have several tokens, padding has none."""
        b, count = bucket.sequences, len(chunks)
        lengths = [len(chunk.ids) for chunk in chunks]
        used = [chunk.start + length for chunk, length in zip(chunks, lengths, strict=True)]
        bounds = list(accumulate(lengths, initial=0))
        tokens, padding = bounds[-1], b - count
        if tokens < self._written:
            self._tokens[:, tokens : self._written] = self._padding
        self._written, self._single = tokens, None
        used += [1] * padding
        keys = accumulate(used, initial=0)
        self._contexts[:, : b + 1] = bounds + [tokens] * padding, list(keys), [*used, 1]
        self._arrays["drafts"][:count] = [chunk.drafts for chunk in chunks]
        if tokens > _FEW_TOKENS:
            self._write_many(chunks, bounds, lengths)
        else:
            self._write_few(chunks)

    def _write_few(self, chunks: Sequence[Chunk]) -> None:
        """Token by token, and all with one call."""
        size = self._size
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        owner: list[int] = []
        for row, chunk in enumerate(chunks):
            start, length, blocks = chunk.start, len(chunk.ids), chunk.blocks
            end, page = start + length, start // size
            ids += chunk.ids
            positions += range(start, end)
            owner += [row] * length
            if end <= (page + 1) * size:
                shift = (blocks[page] - page) * size
                slots += range(start + shift, end + shift)
            else:
                slots += [blocks[at // size] * size + at % size for at in range(start, end)]
        self._tokens[:, : len(ids)] = ids, positions, slots, owner

    def _write_many(
        self, chunks: Sequence[Chunk], bounds: Sequence[int], lengths: Sequence[int]
    ) -> None:
        """As many calls for any number of tokens."""
        arrays, tokens, count = self._arrays, bounds[-1], len(chunks)
        # Counted from the step's first token, positions are shifted for each sequence.
        shifts = [chunk.start - bounds[row] for row, chunk in enumerate(chunks)]
        owner = self._count_up[:count].repeat(lengths)
        positions = np.array(shifts)[owner] + self._count_up[:tokens]
        page, offset = np.divmod(positions, self._size)
        arrays["ids"][:tokens] = list(chain.from_iterable([chunk.ids for chunk in chunks]))
        arrays["positions"][:tokens] = positions
        arrays["slots"][:tokens] = arrays["table"][owner, page] * self._size + offset
        arrays["owner"][:tokens] = owner

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
