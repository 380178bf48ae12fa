"""Made-up sequences for an engine that is measured alone: their ids, cache blocks and chunks.

Knows what `TorchEngine.run` takes; knows neither what is measured nor what is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verifier_service.engines.base import Chunk
    from verifier_service.engines.torch_engine import TorchEngine
    from verifier_service.messages import Sampling

# Ids that are special in no vocabulary of interest.
FIRST_ID = 100


def samplings() -> dict[str, Sampling]:
    """The choices that are timed."""
    from verifier_service.messages import Sampling

    return {
        "greedy": Sampling(temperature=0.0, max_tokens=1 << 20),
        "random": Sampling(temperature=1.0, seed=5, max_tokens=1 << 20),
        "filtered": Sampling(temperature=1.0, seed=5, top_p=0.9, top_k=50, max_tokens=1 << 20),
    }


@dataclass(slots=True)
class Sequences:
    """Chunks of made-up sequences, each with cache blocks of its own."""

    engine: TorchEngine
    max_model_len: int

    @property
    def most(self) -> int:
        """How many sequences of the longest length the cache holds."""
        return self.engine.cache.num_blocks // self._each

    @property
    def _each(self) -> int:
        return -(-self.max_model_len // self.engine.cache.block_size)

    def blocks(self, row: int, length: int) -> list[int]:
        """Of sequence `row`, for `length` positions."""
        count = -(-length // self.engine.cache.block_size)
        return list(range(row * self._each, row * self._each + count))

    def verification(self, row: int, tokens: int, context: int, sampling: Sampling) -> Chunk:
        ids = made_up(row, tokens, self.engine.model.vocab_size)
        return self.chunk(row, ids, context, tokens - 1, sampling)

    def chunk(
        self, row: int, ids: list[int], start: int, drafts: int | None, sampling: Sampling
    ) -> Chunk:
        """`drafts` None: a part of a prompt that chooses nothing."""
        from verifier_service.engines.base import Chunk

        blocks = self.blocks(row, start + len(ids))
        samples = drafts is not None
        return Chunk(ids, start, blocks, drafts or 0, samples, sampling, sequence_ids=ids)

    def decode(
        self, sequences: list[list[int]], sampling: Sampling, steps: int, ahead: bool
    ) -> None:
        """Append `steps` tokens to each sequence, whose keys but the last one's are there.

        `ahead` lets the engine begin each step before it is asked to.
        """
        from verifier_service.engines.base import Chunk

        for _ in range(steps):
            chunks = [
                Chunk(
                    ids[-1:],
                    len(ids) - 1,
                    self.blocks(row, len(ids) + 1),
                    0,
                    True,
                    sampling,
                    sequence_ids=ids,
                )
                for row, ids in enumerate(sequences)
            ]
            verdicts = self.engine.run(chunks, goes_on=(lambda _: True) if ahead else None)
            for ids, verdict in zip(sequences, verdicts, strict=True):
                assert verdict is not None
                ids.extend(verdict.tokens)


def made_up(row: int, tokens: int, vocab_size: int) -> list[int]:
    """Ids that differ by row."""
    return [FIRST_ID + (31 * row + 7 * at) % (vocab_size - FIRST_ID) for at in range(tokens)]
