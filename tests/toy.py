"""A target and a draft model small enough to enumerate: a few tokens, two of them remembered.

Both are tables of logits indexed by the last two tokens, fixed by a seed, so that the exact
distribution of any output is a product of table entries. A context is the integer a * V + b of
the last two tokens (a, b); ids before the first are taken as 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from verifier_service.messages import Sampling
from verifier_service.sampling import SamplingFlags, pack_rows, process_logits

# A context or a token, or tensors of them.
Place = TypeVar("Place", int, Tensor)


@dataclass(frozen=True)
class Toy:
    """Logits [V * V, V], float64, of one model."""

    vocab_size: int
    logits: Tensor

    @classmethod
    def target(cls, vocab_size: int = 4, seed: int = 7, sharpness: float = 1.5) -> Toy:
        """A model whose distributions differ much from context to context."""
        table = np.random.default_rng(seed).normal(size=(vocab_size**2, vocab_size)) * sharpness
        return cls(vocab_size, torch.from_numpy(table))

    def draft(self, seed: int = 11, sigma: float = 1.0) -> Toy:
        """A model that resembles this one: its logits plus Gaussian errors."""
        error = np.random.default_rng(seed).normal(size=tuple(self.logits.shape)) * sigma
        return Toy(self.vocab_size, self.logits + torch.from_numpy(error))

    def processed(self, sampling: Sampling) -> Toy:
        """The same model after temperature, top-k and top-p; a greedy one becomes one-hot."""
        if sampling.temperature == 0:
            best = self.logits.argmax(dim=-1, keepdim=True)
            masked = torch.full_like(self.logits, -torch.inf).scatter(1, best, 0.0)
            return Toy(self.vocab_size, masked)
        rows = pack_rows([(sampling, 0, self.logits.shape[0])])
        return Toy(self.vocab_size, process_logits(self.logits, rows, SamplingFlags.of([sampling])))

    @property
    def probabilities(self) -> Tensor:
        """Next-token probabilities [V * V, V], float64."""
        return self.logits.softmax(dim=-1)

    def context(self, ids: Sequence[int]) -> int:
        """The context after `ids`."""
        a, b = ([0, 0, *ids])[-2:]
        return a * self.vocab_size + b

    def advance(self, context: Place, token: Place) -> Place:
        """The context one token later, elementwise."""
        return context % self.vocab_size * self.vocab_size + token

    def logits_after(self, ids: Sequence[int]) -> Tensor:
        """Logits [V], float32, of the token after `ids`: the fake engine's answer."""
        return self.logits[self.context(ids)].float()

    def law(self, context: int, length: int) -> dict[tuple[int, ...], float]:
        """Exact probability of every continuation of `length` tokens."""
        table = self.probabilities.tolist()
        result = {}
        for tokens in itertools.product(range(self.vocab_size), repeat=length):
            probability, at = 1.0, context
            for token in tokens:
                probability *= table[at][token]
                at = self.advance(at, token)
            result[tokens] = probability
        return result


def total_variation(a: dict[tuple[int, ...], float], b: dict[tuple[int, ...], float]) -> float:
    """Half the sum of absolute differences."""
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())
