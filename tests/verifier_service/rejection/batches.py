"""Small verification batches for tests of the rules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verifier_service.messages import Sampling
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection import SparseQ, VerifyInputs
from verifier_service.sampling import SamplingFlags, pack_rows, process_logits


def batch(
    logits: Tensor,
    samplings: Sequence[Sampling],
    drafts: Sequence[Sequence[int]],
    *,
    q: SparseQ | None = None,
    first: int = 20,
) -> tuple[VerifyInputs, VocabularyNoise]:
    """Sequences whose rows follow each other in `logits` [sum of len(draft) + 1, V]."""
    lengths = [len(draft) for draft in drafts]
    k = max(lengths)
    rows = pack_rows([(s, first, n + 1) for s, n in zip(samplings, lengths, strict=True)])
    flags = SamplingFlags.of(samplings)
    index = torch.zeros(len(drafts), k + 1, dtype=torch.int64)
    ids = torch.zeros(len(drafts), k, dtype=torch.int64)
    row = 0
    for b, draft in enumerate(drafts):
        index[b, : len(draft) + 1] = torch.arange(row, row + len(draft) + 1)
        ids[b, : len(draft)] = torch.tensor(draft, dtype=torch.int64)
        row += len(draft) + 1
    inputs = VerifyInputs(
        process_logits(logits, rows, flags), rows, flags, index, ids, torch.tensor(lengths), q
    )
    return inputs, VocabularyNoise(logits.shape[1])


def certain(*tokens: int, vocab: int = 8) -> Tensor:
    """Logits of rows that leave no choice."""
    best = torch.tensor(tokens).unsqueeze(1)
    return torch.full((len(tokens), vocab), -40.0).scatter(1, best, 40.0)


def flat(rows: int, vocab: int = 8) -> Tensor:
    """Logits of rows in which every token is as likely."""
    return torch.zeros(rows, vocab)
