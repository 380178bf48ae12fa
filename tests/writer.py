"""A toy target that writes: it prefers what follows the last token in a text it knows.

So answers are words, stop strings occur and drafts are accepted, sometimes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tests.toy import Toy
from tests.toy_engine import ToyEngine
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.messages import ModelInfo

MODEL = "toy"
MAX_MODEL_LEN = 256
KNOWN = 'the cat sat on the mat. a dog and a cat STOP stopping 12, 34; {} [] "a": true<|end|>'


@dataclass(frozen=True)
class Writer(Toy):
    """A target whose next token depends on the last one only: logits [V, V]."""

    @classmethod
    def of(cls, text: str, vocab_size: int, seed: int = 5) -> Writer:
        table = torch.randn(
            vocab_size, vocab_size, generator=torch.Generator().manual_seed(seed)
        ).double()
        ids = byte_level_tokenizer().encode(text)
        for last, following in pairwise(ids):
            table[last, following] += 9.0
        return cls(vocab_size, table)

    def logits_after(self, ids: Sequence[int]) -> Tensor:
        return self.logits[ids[-1]].float()


class WriterEngine(ToyEngine):
    @property
    def model(self) -> ModelInfo:
        size = self.toy.vocab_size
        return ModelInfo(MODEL, size, MAX_MODEL_LEN, (1,), "toy", "cpu", "float32")
