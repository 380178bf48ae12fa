"""A toy target whose distribution depends on all that was said: one table row for each history.

Knows the definition of the processed distribution (`reference`) and the engine's code for it; says
which is which. A context is the number of a node in the tree of histories.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tests.exactness.reference import probabilities
from tests.toy import Place, Toy
from verifier_service.engines.base import Chunk
from verifier_service.engines.editing import LogitEditor
from verifier_service.messages import Sampling, SparseRow
from verifier_service.sampling import SamplingFlags, pack_rows, process_logits

# What a grammar allows behind an output, as bits.
Grammar = Callable[[Sequence[int]], int]


@dataclass(frozen=True)
class HistoryToy(Toy):
    """Logits [nodes, V]; node 0 is the prompt, node n's children n * V + 1 + token."""

    def advance(self, context: Place, token: Place) -> Place:
        return context * self.vocab_size + 1 + token


@dataclass(frozen=True)
class Setting:
    """A toy, a prompt, and what a request asks for."""

    toy: Toy
    prompt: tuple[int, ...]
    sampling: Sampling
    grammar: Grammar | None = None

    def mask(self, outputs: Sequence[Sequence[int]]) -> npt.NDArray[np.int32] | None:
        """Masks [len(outputs), 1]; the toy's vocabulary fits one word."""
        if self.grammar is None:
            return None
        return np.array([[self.grammar(output)] for output in outputs], dtype=np.int32)

    def by_definition(self, depth: int) -> HistoryToy:
        """The request's processed distribution behind every history of up to `depth` tokens."""
        rows = []
        for output in self._histories(depth):
            mask = self.mask([output])
            p = probabilities(
                self.toy.logits[self.toy.context([*self.prompt, *output])].numpy(),
                self.sampling,
                self.prompt,
                output,
                None if mask is None else mask[0],
            )
            rows.append(torch.from_numpy(p).log())
        return HistoryToy(self.toy.vocab_size, torch.stack(rows))

    def unprocessed(self, toy: Toy, depth: int) -> HistoryToy:
        """Another toy of the same vocabulary, such as a draft model, over the same histories."""
        contexts = [toy.context([*self.prompt, *output]) for output in self._histories(depth)]
        return HistoryToy(toy.vocab_size, toy.logits[contexts])

    def by_engine(self, blocks: Tensor) -> Tensor:
        """Processed logits [B * (K + 1), V] of blocks [B, K], as the engine computes them."""
        chunks = [self.chunk((), block) for block in blocks.tolist()]
        raw = torch.stack([row for chunk in chunks for row in self.raw(chunk)])
        edits = LogitEditor(self.toy.vocab_size).plan(chunks)
        edited = raw if edits is None else edits.apply(raw)[0]
        rows = pack_rows([(self.sampling, 0, chunk.drafts + 1) for chunk in chunks])
        return process_logits(edited, rows, SamplingFlags.of([self.sampling]))

    def chunk(
        self,
        output: Sequence[int],
        drafts: Sequence[int],
        sampling: Sampling | None = None,
        q: tuple[SparseRow, ...] = (),
    ) -> Chunk:
        """The verification of `drafts` behind prompt and output."""
        ids = [*self.prompt, *output]
        rows = [[*output, *drafts[:count]] for count in range(len(drafts) + 1)]
        return Chunk(
            ids=[ids[-1], *drafts],
            start=len(ids) - 1,
            blocks=[0],
            drafts=len(drafts),
            samples=True,
            sampling=sampling or self.sampling,
            q=q,
            sequence_ids=ids,
            prompt_length=len(self.prompt),
            mask=self.mask(rows),
        )

    def raw(self, chunk: Chunk) -> list[Tensor]:
        """The target's own logits of a chunk's rows."""
        before = [*chunk.sequence_ids]
        drafts = chunk.ids[1:]
        return [
            self.toy.logits[self.toy.context([*before, *drafts[:count]])]
            for count in range(len(drafts) + 1)
        ]

    def _histories(self, depth: int) -> list[tuple[int, ...]]:
        tokens = range(self.toy.vocab_size)
        return [
            output
            for length in range(depth + 1)
            for output in itertools.product(tokens, repeat=length)
        ]
