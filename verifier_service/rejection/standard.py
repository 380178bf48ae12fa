"""The standard rule: accept a draft token with min(1, p/q), else draw from (p - q)+.

Leviathan et al., arXiv 2211.17192, and Chen et al., arXiv 2302.01318. A one-hot q makes it
"accept with probability p, else draw from p without the draft token".
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.sparse_q import TOTAL_MASS
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection import chain
from verifier_service.rejection.coupled import match
from verifier_service.rejection.inputs import VerifyInputs, VerifyResult
from verifier_service.sampling import argmax


def verify_standard(inputs: VerifyInputs, noise: VocabularyNoise) -> VerifyResult:
    """Verify each draft token in turn; stop at the first refusal."""
    if not inputs.flags.any_random:
        return match(argmax(inputs.logits), inputs)
    q = chain.one_hot(inputs.draft_ids) if inputs.q is None else inputs.q
    probabilities = inputs.logits.softmax(dim=-1)
    thresholds = token_thresholds(
        chain.target_probabilities(probabilities, inputs),
        chain.draft_masses(q, inputs.draft_ids),
    )
    passed = chain.acceptance_uniforms(inputs) < thresholds
    if inputs.flags.any_greedy:
        greedy, best = chain.greedy_rows(inputs)
        matches = inputs.draft_ids == best[inputs.row_index[:, :-1]]
        passed = torch.where(greedy.unsqueeze(1), matches, passed)
    accepted = chain.leading(passed, inputs.draft_lengths)
    scale = torch.ones_like(accepted, dtype=probabilities.dtype)
    own = chain.own_token(probabilities, scale, q, accepted, inputs, noise)
    return chain.emit(inputs.draft_ids, accepted, own)


def token_thresholds(p: Tensor, q: Tensor) -> Tensor:
    """min(1, p/q), the probability that each draft token passes; all [B, K] float64.

    A token without mass in q cannot have been drawn from it and never passes.
    """
    return torch.where(q > 0, p / q.clamp(min=1 / TOTAL_MASS), 0.0).clamp(max=1.0)
