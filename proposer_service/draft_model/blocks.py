"""Which sequences hold blocks of the draft model's key cache, and who gives way when it is full.

Knows blocks and when each sequence was last asked about; no tensors, no ids.
"""

from __future__ import annotations

from proposer_service.draft_model.text import DraftText
from verifier_service.engines.base import CacheShape
from verifier_service.kv_cache import BlockPool

# A sequence that was not asked about in so many rounds may lose its keys to any other. Until then
# only to one that was opened before it: where not all that run fit, some must go on while the
# others wait. If each could take from the other, all would read their whole texts in every round.
# Streams of several verifiers take turns, so one round says little.
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

        Those not asked about of late give way, the one used longest ago first, then the youngest
        of those opened later; `now` is this round.
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
        others = [holder for holder in self._holders.values() if holder is not text]
        idle = [holder for holder in others if holder.used + IDLE_ROUNDS <= now]
        later = [holder for holder in others if holder.number > text.number and holder not in idle]
        giving = [*idle, *sorted(later, key=lambda holder: -holder.number)]
        if self._pool.num_free + sum(len(holder.blocks) for holder in giving) < missing:
            return False
        for holder in giving:
            if self._pool.num_free >= missing:
                break
            self.release(holder)
            self.evictions += 1
        return True
