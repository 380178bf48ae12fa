"""The plain step that is likely to follow, begun before the host has asked for it.

Knows chunks and what became of them; does not know the device. A plain step behind another step
needs nothing that the host has yet to find out: its ids are the tokens that were just chosen. It is
begun at once where every sequence goes on and has room, and its result is used if the host then
asks for exactly that. If not, it is forgotten: what it wrote to the cache lies behind all that is
valid, in blocks of the sequence's own, and whatever is launched later comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verifier_service.engines.base import CacheShape, Chunk, Verdict


@dataclass(frozen=True, slots=True)
class Expected:
    """One sequence's next chunk, if all goes on as it is."""

    token: int
    start: int
    blocks: tuple[int, ...]
    chunk: Chunk

    def as_chunk(self) -> Chunk:
        """What the host would ask for."""
        before = self.chunk
        return Chunk(
            [self.token],
            self.start,
            before.blocks,
            0,
            True,
            before.sampling,
            sequence_ids=before.sequence_ids,
            prompt_length=before.prompt_length,
        )

    def is_met_by(self, chunk: Chunk) -> bool:
        """Whether the host asks for what was begun."""
        before = self.chunk
        return (
            chunk.start == self.start
            and chunk.ids == [self.token]
            and chunk.sampling is before.sampling
            and chunk.sequence_ids is before.sequence_ids
            and chunk.mask is None
            and tuple(chunk.blocks[: len(self.blocks)]) == self.blocks
        )


def expect(
    chunks: Sequence[Chunk], verdicts: Sequence[Verdict], cache: CacheShape, max_model_len: int
) -> list[Expected] | None:
    """The plain step behind a step of these chunks; None where a sequence ends or lacks room."""
    following = []
    for chunk, verdict in zip(chunks, verdicts, strict=True):
        if chunk.mask is not None or not verdict.tokens:
            return None
        start = chunk.start + len(verdict.tokens)
        token = verdict.tokens[-1]
        sampling = chunk.sampling
        if verdict.accepted and not sampling.stop_token_ids.isdisjoint(verdict.tokens):
            return None
        emitted = start + 1 - chunk.prompt_length
        room = min(len(chunk.blocks) * cache.block_size, max_model_len - 1)
        if token in sampling.stop_token_ids or emitted >= sampling.max_tokens or start >= room:
            return None
        blocks = tuple(chunk.blocks[: start // cache.block_size + 1])
        following.append(Expected(token, start, blocks, chunk))
    return following
