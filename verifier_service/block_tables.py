"""What blocks each sequence holds, and which of them it need not compute.

Knows sequences' ids, the block pool and the prefix cache; does not know steps or budgets. Only
blocks whose keys are all computed from committed ids are ever published: drafts that were rejected
left theirs behind the computed length, where they are written over.

An engine with a paged attention kernel shares cached blocks as they lie. One that wants neighbours
gets a copy of them in a run of its own blocks, unless the cached ones can be continued in place:
copying keys costs little beside computing them, and gathering scattered ones would be paid again
in every step.
"""

from __future__ import annotations

from verifier_service.engines.base import CacheShape
from verifier_service.kv_cache import BlockPool, is_contiguous
from verifier_service.prefix_cache import PrefixCache
from verifier_service.sequences import Sequence


class BlockTables:
    """All sequences' blocks of one engine's cache.

    `queried_tokens` and `hit_tokens` count prompt tokens that were looked for and found, once for
    each request: a preempted one that finds its own blocks again is no hit.
    """

    def __init__(self, cache: CacheShape, *, prefix_caching: bool = True) -> None:
        self._size = cache.block_size
        self._neighbours = cache.neighbours
        self._prefixes = PrefixCache(cache.block_size) if prefix_caching else None
        self._pool = BlockPool(
            cache.num_blocks,
            neighbours=cache.neighbours,
            on_evict=None if self._prefixes is None else self._prefixes.forget,
        )
        self._copies: list[tuple[int, int]] = []
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, cached ones among them."""
        return self._pool.num_free

    def open(self, sequence: Sequence, spare: int) -> bool:
        """Blocks for all a sequence's ids and one more; cached ones are its own and computed.

        False, and nothing done, if fewer than `spare` blocks would be left.
        """
        found = self._found(sequence)
        needed = self._blocks_for(len(sequence.ids) + 1)
        idle = sum(self._pool.owners(block) == 0 for block in found)
        left = self._pool.num_free - idle - (needed - len(found))
        if left < spare:
            return False
        for block in found:
            self._pool.share(block)
        if self._wants_copy(found, needed) and left - len(found) >= spare:
            self._pool.extend(sequence.blocks, needed)
            self._copies.extend(zip(found, sequence.blocks, strict=False))
            self._pool.release(list(found))
        else:
            sequence.blocks.extend(found)
            self._pool.extend(sequence.blocks, needed - len(found))
        if self._reads(sequence) and not sequence.preemptions:
            self.queried_tokens += sequence.prompt_length
        self._take_over(sequence, len(found))
        return True

    def adopt(self, sequence: Sequence) -> None:
        """Take over what was published of a sequence's next blocks since it was opened."""
        first = sequence.computed // self._size
        if sequence.computed % self._size:
            return
        found = self._found(sequence, first)
        for index, block in enumerate(found, start=first):
            own = sequence.blocks[index]
            if self._neighbours:
                self._copies.append((block, own))
            else:
                self._pool.share(block)
                self._pool.release([own])
                sequence.blocks[index] = block
        self._take_over(sequence, len(found))

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Blocks for `length` tokens; False, and nothing done, if there are too few."""
        if length <= len(sequence.blocks) * self._size:
            return True
        missing = self._blocks_for(length) - len(sequence.blocks)
        return self._pool.extend(sequence.blocks, missing)

    def reserve_spare(self, sequence: Sequence, length: int, spare: int) -> None:
        """Blocks for `length` tokens where more than `spare` are free: nobody gives way for it."""
        if length > len(sequence.blocks) * self._size and self._pool.num_free > spare:
            self.reserve(sequence, length)

    def publish(self, sequence: Sequence) -> None:
        """Let others find the blocks that are computed since the last call."""
        full = sequence.computed // self._size
        if self._prefixes is None or full <= sequence.published:
            return
        self._name(sequence, full)
        for index in range(sequence.published, full):
            block = sequence.blocks[index]
            if self._prefixes.publish(sequence.block_names[index], block):
                self._pool.keep(block)
        sequence.published = full

    def close(self, sequence: Sequence) -> None:
        """Give up a sequence's blocks; those that others may want stay cached for a while."""
        # What it copied may have lost its original meanwhile.
        sequence.published = 0
        self.publish(sequence)
        self._pool.release(sequence.blocks)
        sequence.computed = sequence.published = 0

    def next_name(self, sequence: Sequence) -> bytes | None:
        """Name of the block that a sequence would take over next, were it cached."""
        index = sequence.computed // self._size
        end = (index + 1) * self._size
        if not self._reads(sequence) or sequence.computed % self._size or end >= len(sequence.ids):
            return None
        self._name(sequence, index + 1)
        return sequence.block_names[index]

    def names(self, sequence: Sequence, count: int) -> list[bytes]:
        """Names of the blocks that the next `count` of a sequence's tokens complete."""
        if self._prefixes is None:
            return []
        first, last = sequence.computed // self._size, (sequence.computed + count) // self._size
        self._name(sequence, last)
        return sequence.block_names[first:last]

    def take_copies(self) -> list[tuple[int, int]]:
        """(from, to) blocks to be copied, in this order, before the next step writes any."""
        copies, self._copies = self._copies, []
        return copies

    def _found(self, sequence: Sequence, first: int = 0) -> list[int]:
        """Cached blocks of a sequence from block `first` on; its last id is never in them."""
        if self._prefixes is None or not self._reads(sequence):
            return []
        full = (len(sequence.ids) - 1) // self._size
        self._name(sequence, full)
        found: list[int] = []
        for name in sequence.block_names[first:full]:
            block = self._prefixes.find(name)
            if block is None:
                break
            found.append(block)
        return found

    def _take_over(self, sequence: Sequence, count: int) -> None:
        sequence.computed += count * self._size
        sequence.published = max(sequence.published, sequence.computed // self._size)
        if not sequence.preemptions:
            sequence.cached += count * self._size
            self.hit_tokens += count * self._size

    def _wants_copy(self, found: list[int], needed: int) -> bool:
        if not self._neighbours or not found:
            return False
        in_place = is_contiguous(found) and self._pool.is_open_behind(
            found[-1], needed - len(found)
        )
        return not in_place and self._pool.has_run(needed)

    def _reads(self, sequence: Sequence) -> bool:
        """Whether a sequence may skip what is cached: not while its prompt's logits are wanted."""
        return self._prefixes is not None and not sequence.prompt_untold

    def _name(self, sequence: Sequence, count: int) -> None:
        if self._prefixes is not None:
            salt = sequence.request.cache_salt
            self._prefixes.extend_names(sequence.block_names, sequence.ids, salt, count)

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._size)
