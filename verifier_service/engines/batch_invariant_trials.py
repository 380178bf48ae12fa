"""Ways to compute a sequence's logits that must give the same bits.

Knows chunks and forwards; does not know how a forward keeps the promise that is tried here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifier_service.engines.base import CacheShape, Chunk
from verifier_service.engines.forward import Forward
from verifier_service.engines.layout import StepTensors, pack
from verifier_service.engines.loading import LoadedModel
from verifier_service.messages import Sampling

_GREEDY = Sampling(temperature=0.0)
# Tokens of the sequence that is tried: of several tiles of queries, on a GPU also of several blocks
# of keys, and more rows than a large tile has.
_LENGTH = {"cpu": 45, "cuda": 300}


class Trials:
    """A sequence's last logits, computed in several ways that must give the same bits.

    Uses the first blocks of a cache in which nothing is held yet. Steps of fewer than `min_tokens`
    are padded.
    """

    def __init__(
        self, loaded: LoadedModel, shape: CacheShape, device: torch.device, min_tokens: int = 1
    ) -> None:
        self._shape, self._device, self._group = shape, device, loaded.group
        self._min_tokens = min_tokens
        half = min(shape.num_blocks // 2 or 1, 2)
        room = min(half * shape.block_size, loaded.max_model_len)
        # The second sequence needs blocks of its own.
        self._others = shape.num_blocks >= 2
        self._blocks = list(range(half))
        self._other_blocks = list(range(half, 2 * half))
        count = min(room, _LENGTH[device.type])
        self._ids = [(i * 7919 + 11) % loaded.vocab_size for i in range(count)]
        self._tail = min(5, count)

    def alone(self) -> StepTensors:
        """The whole sequence in one step, with logits of its last tokens."""
        return self._pack([self._chunk(0, len(self._ids), self._tail - 1)])

    def difference(self, forward: Forward) -> str:
        """Which way gives other bits than `alone`, in words; empty where none does."""
        count, tail = len(self._ids), self._tail
        wanted = forward(self.alone())
        one_by_one = [
            forward(self._pack([self._chunk(at, at + 1, 0)]))[0]
            for at in range(count - tail, count)
        ]
        if not torch.equal(torch.stack(one_by_one), wanted):
            return "between one token and several in a step"
        middle = max((count - tail) // 2, 1)
        for begin in range(0, count - tail, middle):
            end = min(begin + middle, count - tail)
            forward(self._pack([self._chunk(begin, end, None)]))
        if not torch.equal(
            forward(self._pack([self._chunk(count - tail, count, tail - 1)])), wanted
        ):
            return "between a prompt computed at once and in parts"
        if not self._others:
            return ""
        other = Chunk(self._ids[::-1], 0, self._other_blocks, 0, True, _GREEDY)
        beside = forward(self._pack([other, self._chunk(count - tail, count, tail - 1)]))
        return "" if torch.equal(beside[1:], wanted) else "beside another sequence"

    def _chunk(self, begin: int, end: int, drafts: int | None) -> Chunk:
        """The sequence's tokens from `begin` to `end`; None as drafts: nothing is chosen."""
        ids = self._ids[begin:end]
        return Chunk(ids, begin, self._blocks, drafts or 0, drafts is not None, _GREEDY)

    def _pack(self, chunks: Sequence[Chunk]) -> StepTensors:
        return pack(list(chunks), self._shape, self._group, self._device, self._min_tokens)
