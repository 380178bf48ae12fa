"""What the scheduler asks of an engine: run the target over a packed step, get tokens back.

Knows ids, positions and blocks; does not know requests, proposers or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from verifier_service.messages import ModelInfo, QForm, Sampling, SparseRow


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's part of a step.

    `ids` are the tokens whose keys and values this step computes, the first at absolute position
    `start`; the last `drafts` of them are draft tokens. `blocks` covers `start + len(ids)`
    positions. `samples` is False for a prefill chunk that does not reach the sequence's end.
    """

    ids: list[int]
    start: int
    blocks: list[int]
    drafts: int
    samples: bool
    sampling: Sampling
    q_form: QForm = QForm.ONE_HOT
    q: tuple[SparseRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says to one chunk: drafts accepted, and these plus its own token."""

    accepted: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The engine's paged KV cache: `num_blocks` blocks of `block_size` tokens."""

    num_blocks: int
    block_size: int


class Engine(Protocol):
    """The target model. Not thread-safe: one thread runs it."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def cache(self) -> CacheShape: ...

    def run(self, chunks: list[Chunk]) -> list[Verdict | None]:
        """One forward over all chunks; a verdict for each that samples, None for the others."""

    def close(self) -> None:
        """Release device memory."""
