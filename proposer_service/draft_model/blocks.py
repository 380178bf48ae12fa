"""Which sequences hold blocks of the draft model's key cache, and who gives way when it is full.

Knows blocks and when each sequence was last asked about; no tensors, no ids.
"""

from __future__ import annotations

from proposer_service.draft_model.text import DraftText
from verifier_service.engines.base import CacheShape
from verifier_service.kv_cache import BlockPool

# Rounds in which a sequence was not asked about before its keys may be given up. Streams of several
# verifiers take turns, and where all that run do not fit, those that have keys must keep them:
# giving each other's up in turn would have every one of them read its whole text in every round.
IDLE_ROUNDS = 16


class KeyBlocks:
    """The blocks of one engine's cache, by sequence."""

    def __init__(self, cache: CacheShape) -> None:
        self._size = cache.block_size
        self._pool = BlockPool(cache.num_blocks, neighbours=cache.neighbours)
        # Who holds blocks, the one used longest ago first.
        self._holders: dict[int, DraftText] = {}
        self.evictions = 0

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def cover(self, text: DraftText, tokens: int, now: int) -> bool:
        """Give a sequence room for `tokens` ids; False, and what it has kept, if there is none.

        The sequence used longest ago gives way, unless it was asked about of late; `now` is this
        round.
        """
        missing = -(-tokens // self._size) - len(text.blocks)
        if missing > self._pool.num_free and not self._make_room(text, missing, now):
            return False
        if missing > 0:
            self._pool.extend(text.blocks, missing)
        self._holders.pop(text.number, None)
        self._holders[text.number] = text
        return True

    def holds(self, text: DraftText, tokens: int) -> bool:
        """Whether a sequence has room for so many ids."""
        return len(text.blocks) * self._size >= tokens

    def release(self, text: DraftText) -> None:
        """Take a sequence's blocks back."""
        self._holders.pop(text.number, None)
        if text.blocks:
            self._pool.release(text.blocks)
        text.forget_keys()

    def _make_room(self, text: DraftText, missing: int, now: int) -> bool:
        idle = [
            holder
            for holder in self._holders.values()
            if holder is not text and holder.used + IDLE_ROUNDS <= now
        ]
        if self._pool.num_free + sum(len(holder.blocks) for holder in idle) < missing:
            return False
        for holder in idle:
            if self._pool.num_free >= missing:
                break
            self.release(holder)
            self.evictions += 1
        return True
