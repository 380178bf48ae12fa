"""Who owns which blocks of the paged KV cache; numbers only, no tensors.

Knows block indices. Where it can, it gives a sequence neighbouring blocks: an engine without a
paged attention kernel (the CPU) then reads a sequence's keys as one view instead of a copy.
"""

from __future__ import annotations

import numpy as np


class BlockPool:
    """Blocks 0 … `num_blocks` - 1, each free or owned by one sequence."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks {num_blocks}: the cache needs at least 1 block")
        self.num_blocks = num_blocks
        self._is_free = np.ones(num_blocks, dtype=np.bool_)
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        return self._num_free

    def extend(self, blocks: list[int], count: int) -> bool:
        """Append `count` free blocks to a sequence's table; False, and nothing done, if too few.

        The block behind the last one is preferred; a sequence's first block starts in the middle
        of the widest gap, so that it and its neighbour below have room to grow.
        """
        if count > self._num_free:
            return False
        for _ in range(count):
            block = blocks[-1] + 1 if blocks else self._start_of_gap(count)
            if block >= self.num_blocks or not self._is_free[block]:
                block = self._start_of_gap(1)
            self._is_free[block] = False
            blocks.append(block)
        self._num_free -= count
        return True

    def release(self, blocks: list[int]) -> None:
        """Free all blocks of a table and empty it. Raises ValueError on a double free."""
        for block in blocks:
            if self._is_free[block]:
                raise ValueError(f"block {block} is freed twice")
            self._is_free[block] = True
        self._num_free += len(blocks)
        blocks.clear()

    def _start_of_gap(self, count: int) -> int:
        """A free block: the widest gap's first, or its middle where `count` fit behind that."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], self._is_free.view(np.int8), [0]))))
        starts, ends = edges[0::2], edges[1::2]
        widest = int(np.argmax(ends - starts))
        start, width = int(starts[widest]), int(ends[widest] - starts[widest])
        if start == 0 or width // 2 < count:
            return start
        return start + width // 2


def is_contiguous(blocks: list[int]) -> bool:
    """Whether a table's blocks are neighbours in order. Tables are short: a scan is cheap."""
    return blocks[-1] - blocks[0] == len(blocks) - 1 and all(
        block == blocks[0] + i for i, block in enumerate(blocks)
    )
