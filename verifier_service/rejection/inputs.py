"""What a verification reads and answers, and how q gets into a batch. Knows no rule.

K is the longest draft of the batch, Q = K + 1, B sequences share R rows of logits. Row
`row_index[b, j]` is the target's distribution after j of sequence b's draft tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.sparse_q import TOTAL_MASS
from verifier_service.messages import SparseRow
from verifier_service.sampling import RowSampling, SamplingFlags
from verifier_service.transfers import to_device


@dataclass(frozen=True, slots=True)
class SparseQ:
    """q of each draft token: ids [B, K, N] int64 and masses [B, K, N] int64 that sum to 2^32.

    Unused entries have id 0 and mass 0. A draft that is a function of its context has one entry,
    its own id, with all the mass.
    """

    token_ids: Tensor
    masses: Tensor


@dataclass(frozen=True, slots=True)
class VerifyInputs:
    """One verification of B sequences; every tensor lies on the engine's device.

    `logits` [R, V]: processed (`sampling.process_logits`). `rows`, `flags`: of these R rows; all
    rows of a sequence share temperature and seed, their positions ascend by one.
    `row_index` [B, K+1] int64: any valid row where j > draft_lengths[b].
    `draft_ids` [B, K] int64: any valid id where j >= draft_lengths[b]; K may be 0.
    `draft_lengths` [B] int64. `q`: None where every draft is ids only (coupled or one-hot).
    """

    logits: Tensor
    rows: RowSampling
    flags: SamplingFlags
    row_index: Tensor
    draft_ids: Tensor
    draft_lengths: Tensor
    q: SparseQ | None = None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """`accepted` [B] int64: accepted draft tokens. `tokens` [B, K+1] int64: these, then the
    target's own token, then -1; so accepted[b] + 1 tokens of sequence b are real.
    """

    accepted: Tensor
    tokens: Tensor


def pack_q(
    draft_ids: Sequence[Sequence[int]],
    q: Sequence[Sequence[SparseRow] | None],
    width: int,
    device: torch.device | str = "cpu",
    entries: int | None = None,
) -> SparseQ | None:
    """q of a batch, padded to [B, width, N]; None if no block has one.

    Blocks without q (None or empty) become one-hot. `entries` fixes N, the longest row by
    default. Raises ValueError where a row does not fit.
    """
    if not any(q):
        return None
    longest = max((len(row.token_ids) for rows in q if rows for row in rows), default=1)
    n = longest if entries is None else entries
    if longest > n:
        raise ValueError(f"entries {n}: a q row has {longest}")
    ids = torch.zeros(len(draft_ids), width, n, dtype=torch.int64)
    masses = torch.zeros_like(ids)
    for b, (tokens, rows) in enumerate(zip(draft_ids, q, strict=True)):
        for j, token in enumerate(tokens):
            if rows:
                count = len(rows[j].token_ids)
                ids[b, j, :count] = torch.tensor(rows[j].token_ids)
                masses[b, j, :count] = torch.tensor(rows[j].masses)
            else:
                ids[b, j, 0] = token
                masses[b, j, 0] = TOTAL_MASS
    return SparseQ(to_device(ids, device), to_device(masses, device))
