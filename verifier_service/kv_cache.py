"""Who owns which blocks of the paged KV cache; numbers only, no tensors and no contents.

Knows block indices, how many owners each has, and which blocks hold something worth keeping once
nobody owns them. For an engine without a paged attention kernel (the CPU) it gives a sequence
neighbouring blocks where it can: its keys are then read as one view instead of a copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view


class BlockPool:
    """Blocks 0 … `num_blocks` - 1, each without an owner or owned by one or more sequences.

    A kept block stays as it is while nobody owns it, until its room is needed: then the one that
    was let go of longest ago is given away, and `on_evict` hears of it first.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        neighbours: bool = True,
        on_evict: Callable[[int], None] | None = None,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks {num_blocks}: the cache needs at least 1 block")
        self.num_blocks = num_blocks
        self._neighbours = neighbours
        self._on_evict = on_evict
        self._owners = np.zeros(num_blocks, dtype=np.int32)
        # When a kept block was last let go of; 0 for blocks that are not kept.
        self._stamps = np.zeros(num_blocks, dtype=np.int64)
        self._clock = 0
        self._num_free = num_blocks
        # Where blocks are taken by age alone: the free ones that are empty, and (stamp, block) of
        # the free ones that are kept, oldest first, with entries that have become untrue.
        self._empty = deque(() if neighbours else range(num_blocks))
        self._aged: deque[tuple[int, int]] = deque()

    @property
    def num_free(self) -> int:
        """Blocks without an owner, kept ones among them: what `extend` can give."""
        return self._num_free

    def owners(self, block: int) -> int:
        return int(self._owners[block])

    def is_kept(self, block: int) -> bool:
        return bool(self._stamps[block])

    def extend(self, blocks: list[int], count: int) -> bool:
        """Append `count` blocks to a sequence's table; False, and nothing done, if too few.

        Where neighbours matter, the block behind the last one is preferred; a sequence's first
        block starts in the middle of the widest gap, so that it and its neighbour below have room
        to grow.
        """
        if count > self._num_free:
            return False
        if not self._neighbours:
            for block in self._oldest(count):
                self._take(block)
                blocks.append(block)
            return True
        for left in range(count, 0, -1):
            block = blocks[-1] + 1 if blocks else self._place(left)
            if block >= self.num_blocks or self._owners[block]:
                block = self._place(left)
            self._take(block)
            blocks.append(block)
        return True

    def share(self, block: int) -> None:
        """One owner more, of a block that is owned or kept. Raises ValueError for any other."""
        if not self._owners[block]:
            if not self._stamps[block]:
                raise ValueError(f"block {block} holds nothing to share")
            self._num_free -= 1
        self._owners[block] += 1

    def keep(self, block: int) -> None:
        """Hold on to an owned block's contents when its last owner is gone."""
        if not self._owners[block]:
            raise ValueError(f"block {block} has no owner: its contents are anybody's")
        self._clock += 1
        self._stamps[block] = self._clock

    def release(self, blocks: list[int]) -> None:
        """Give up a table's blocks and empty it. Raises ValueError on a double free.

        Of the blocks that are kept the last ones are given away first: the first ones serve more
        prefixes.
        """
        for block in reversed(blocks):
            owners = self._owners[block]
            if owners == 0:
                raise ValueError(f"block {block} is freed twice")
            self._owners[block] = owners - 1
            if owners == 1:
                self._num_free += 1
                if self._stamps[block]:
                    self._clock += 1
                    self._stamps[block] = self._clock
                self._queue(block)
        blocks.clear()

    def has_run(self, count: int) -> bool:
        """Whether `extend` of an empty table would give `count` neighbours."""
        return len(self._runs(count)) > 0

    def is_open_behind(self, block: int, count: int) -> bool:
        """Whether `count` blocks right behind a block have no owner and nothing worth keeping."""
        behind = slice(block + 1, block + 1 + count)
        room = len(self._owners[behind]) == count
        return room and not self._owners[behind].any() and not self._stamps[behind].any()

    def _take(self, block: int) -> None:
        self._num_free -= 1
        self._owners[block] = 1
        if self._stamps[block]:
            self._stamps[block] = 0
            if self._on_evict is not None:
                self._on_evict(block)

    def _oldest(self, count: int) -> list[int]:
        """The next `count` free blocks to take: empty ones, then those kept longest."""
        chosen: list[int] = []
        while self._empty and len(chosen) < count:
            chosen.append(self._empty.popleft())
        while len(chosen) < count:
            stamp, block = self._aged.popleft()
            # One that was shared since has another stamp, or an owner.
            if self._stamps[block] == stamp and not self._owners[block]:
                chosen.append(block)
        return chosen

    def _queue(self, block: int) -> None:
        """Put a block that has just lost its last owner where `_oldest` finds it."""
        if self._neighbours:
            return
        stamp = int(self._stamps[block])
        if not stamp:
            self._empty.append(block)
            return
        self._aged.append((stamp, block))
        if len(self._aged) > 2 * self.num_blocks:
            self._aged = deque(
                (stamp, block)
                for stamp, block in self._aged
                if self._stamps[block] == stamp and not self._owners[block]
            )

    def _place(self, count: int) -> int:
        """Where a run of `count` blocks should start; of fewer, where no gap is wide enough."""
        start, width = _widest((self._owners == 0) & (self._stamps == 0))
        if width >= count:
            return start if start == 0 or width // 2 < count else start + width // 2
        runs = self._runs(count)
        if len(runs):
            newest = sliding_window_view(self._stamps, count)[runs].max(axis=1)
            return int(runs[np.argmin(newest)])
        return _widest(self._owners == 0)[0]

    def _runs(self, count: int) -> npt.NDArray[np.intp]:
        """Blocks at which `count` blocks without an owner begin."""
        if count > self.num_blocks:
            return np.empty(0, dtype=np.intp)
        owned = np.concatenate(([0], np.cumsum(self._owners > 0)))
        return np.flatnonzero(owned[count:] == owned[:-count])


def _widest(wanted: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Start and width of the widest run of true values; (0, 0) where there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], wanted.view(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    starts, ends = edges[0::2], edges[1::2]
    widest = int(np.argmax(ends - starts))
    return int(starts[widest]), int(ends[widest] - starts[widest])


def is_contiguous(blocks: list[int]) -> bool:
    """Whether a table's blocks are neighbours in order. Tables are short: a scan is cheap."""
    return blocks[-1] - blocks[0] == len(blocks) - 1 and all(
        block == blocks[0] + i for i, block in enumerate(blocks)
    )
