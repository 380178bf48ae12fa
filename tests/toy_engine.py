"""The toy target as an `Engine`, with a cache that notices every misuse; and toy draft sources.

The cache holds token ids instead of keys: a chunk whose blocks do not hold exactly the sequence's
earlier ids, or that writes a block of another sequence, fails the test that runs it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from tests.toy import Toy
from verifier_service.engines.base import (
    CacheShape,
    Chunk,
    GoesOn,
    Joining,
    Meanwhile,
    Verdict,
    no_more,
    nobody,
)
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.layout import pack_choices
from verifier_service.engines.logprobs import prompt_rows, with_logprobs
from verifier_service.messages import (
    DraftBlock,
    Expected,
    Foreseen,
    ModelInfo,
    RejectionRule,
    SequenceView,
)


class ToyEngine:
    """Runs `Toy` over chunks through the real layout, sampling and rejection code."""

    def __init__(
        self,
        toy: Toy | None = None,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        rule: RejectionRule = RejectionRule.COUPLED,
        neighbours: bool = False,
    ) -> None:
        self.toy = toy or Toy.target()
        self._cache = CacheShape(num_blocks, block_size, neighbours)
        self._chooser = Chooser(rule, self.toy.vocab_size, "cpu")
        self.slots = [-1] * (num_blocks * block_size)
        self.steps: list[list[Chunk]] = []
        self.copied: list[tuple[int, int]] = []
        self.fail_at: int | None = None
        self.closed = False
        # What a device's account would say.
        self.busy_s: float | None = None

    @property
    def model(self) -> ModelInfo:
        return ModelInfo("toy", self.toy.vocab_size, 256, (), "toy", "cpu", "float32")

    @property
    def cache(self) -> CacheShape:
        return self._cache

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        meanwhile()
        if self.fail_at == len(self.steps):
            raise RuntimeError("the toy engine was told to fail")
        self.steps.append([_copy(chunk) for chunk in chunks])
        self._check_owners(chunks)
        logits, prompt_logits = [], []
        for chunk in chunks:
            asked = prompt_rows(chunk)
            known = [self.slots[self._slot(chunk, i)] for i in range(chunk.start)]
            assert -1 not in known, "a chunk's earlier ids are not in its blocks"
            if chunk.sequence_ids:
                assert known == list(chunk.sequence_ids[: chunk.start]), "another's keys are read"
            for i, token in enumerate(chunk.ids):
                known.append(token)
                self.slots[self._slot(chunk, chunk.start + i)] = token
                if chunk.samples and i >= len(chunk.ids) - chunk.drafts - 1:
                    logits.append(self.toy.logits_after(known))
                if i in asked:
                    prompt_logits.append(self.toy.logits_after(known))
        choosing = [chunk for chunk in chunks if chunk.samples]
        if not choosing and not prompt_logits:
            return [None] * len(chunks)
        raw = torch.stack(logits + prompt_logits)
        if not choosing:
            return with_logprobs(raw, chunks, [None] * len(chunks))
        choices = pack_choices(chunks, torch.device("cpu"))
        verdicts = iter(self._chooser.verdicts(raw[: len(logits)], choices, choosing))
        answers = [next(verdicts) if chunk.samples else None for chunk in chunks]
        return with_logprobs(raw, chunks, answers)

    def device_busy_s(self) -> float | None:
        return self.busy_s

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        size = self._cache.block_size
        for source, target in pairs:
            kept = self.slots[source * size : (source + 1) * size]
            assert -1 not in kept, "a block is copied that was not computed"
            self.slots[target * size : (target + 1) * size] = kept
        self.copied.extend(pairs)

    def close(self) -> None:
        self.closed = True

    def _check_owners(self, chunks: list[Chunk]) -> None:
        """Blocks may be shared by sequences that read them; a written one is in one table only."""
        size = self._cache.block_size
        tables = Counter(block for chunk in chunks for block in chunk.blocks)
        for chunk in chunks:
            assert len(set(chunk.blocks)) == len(chunk.blocks), "a table names a block twice"
            first, last = chunk.start // size, (chunk.start + len(chunk.ids) - 1) // size
            for block in chunk.blocks[first : last + 1]:
                assert tables[block] == 1, "a block is written that another sequence holds"

    def _slot(self, chunk: Chunk, position: int) -> int:
        size = self._cache.block_size
        return chunk.blocks[position // size] * size + position % size


def _copy(chunk: Chunk) -> Chunk:
    return Chunk(
        list(chunk.ids),
        chunk.start,
        list(chunk.blocks),
        chunk.drafts,
        chunk.samples,
        chunk.sampling,
    )


Guess = Callable[[SequenceView, random.Random], Sequence[int]]


@dataclass
class ToySource:
    """A draft source that guesses in process: `guess(view, rng)` gives the draft's ids."""

    guess: Guess
    name: str = "toy"
    rng: random.Random = field(default_factory=lambda: random.Random(3))
    closed: list[tuple[int, bool]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    ended: bool = False
    _blocks: dict[int, list[DraftBlock]] = field(default_factory=dict)

    @property
    def looks_ahead(self) -> bool:
        return True

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        self.closed.extend(closed)
        self._blocks = {}
        for view in views:
            self.seen.add(view.sequence_id)
            ids = tuple(self.guess(view, self.rng)[: view.max_draft_tokens])
            if ids:
                block = DraftBlock(self.name, len(view.ids), ids, match_length=2)
                self._blocks[view.sequence_id] = [block]

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        return self._blocks

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        return None

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        return None

    def hush(self) -> None:
        return

    def listen(self) -> None:
        return

    def close(self) -> None:
        self.ended = True


def random_guess(view: SequenceView, rng: random.Random) -> list[int]:
    """Any ids of the toy's four, any number of them."""
    return [rng.randrange(4) for _ in range(rng.randrange(view.max_draft_tokens + 1))]


def oracle(toy: Toy) -> Guess:
    """The greedy continuation, never wrong at temperature 0."""

    def guess(view: SequenceView, rng: random.Random) -> list[int]:
        ids = list(view.ids)
        for _ in range(view.max_draft_tokens):
            ids.append(int(toy.logits_after(ids).argmax()))
        return ids[len(view.ids) :]

    return guess
