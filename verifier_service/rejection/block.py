"""The block rule: one joint test of a draft, never fewer tokens accepted than token by token.

Sun et al., "Block Verification Accelerates Speculative Decoding", arXiv 2403.10444, algorithm 2.
Needs a q that drafts were sampled from; for one-hot q it has the standard rule's law.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.sparse_q import TOTAL_MASS
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection import chain
from verifier_service.rejection.inputs import SparseQ, VerifyInputs, VerifyResult
from verifier_service.rejection.standard import verify_standard


def verify_block(inputs: VerifyInputs, noise: VocabularyNoise) -> VerifyResult:
    """Accept the longest prefix whose own test passes."""
    if inputs.q is None or inputs.draft_ids.shape[1] == 0 or not inputs.flags.any_random:
        return verify_standard(inputs, noise)
    probabilities = inputs.logits.softmax(dim=-1)
    ratios = running_ratios(
        chain.target_probabilities(probabilities, inputs),
        chain.draft_masses(inputs.q, inputs.draft_ids),
    )
    thresholds = block_thresholds(probabilities, ratios, inputs.q, inputs)
    passed = chain.acceptance_uniforms(inputs) < thresholds
    accepted = longest(passed, inputs.draft_lengths)
    if inputs.flags.any_greedy:
        greedy, best = chain.greedy_rows(inputs)
        matches = inputs.draft_ids == best[inputs.row_index[:, :-1]]
        accepted = torch.where(greedy, chain.leading(matches, inputs.draft_lengths), accepted)
    before = torch.nn.functional.pad(ratios, (1, 0), value=1.0)
    scale = before.gather(1, accepted.unsqueeze(1)).squeeze(1)
    own = chain.own_token(probabilities, scale, inputs.q, accepted, inputs, noise)
    return chain.emit(inputs.draft_ids, accepted, own)


def running_ratios(p: Tensor, q: Tensor) -> Tensor:
    """r_i = min(1, r_(i-1) p_i / q_i) with r_0 = 1, float64 [B, K], of p and q [B, K]."""
    step = torch.where(q > 0, p / q.clamp(min=1 / TOTAL_MASS), 0.0)
    ratios = []
    ratio = torch.ones_like(step[:, :1])
    for i in range(step.shape[1]):
        ratio = (ratio * step[:, i : i + 1]).clamp(max=1.0)
        ratios.append(ratio)
    return torch.cat(ratios, dim=1)


def block_thresholds(
    probabilities: Tensor, ratios: Tensor, q: SparseQ, inputs: VerifyInputs
) -> Tensor:
    """h_i, float64 [B, K]: the probability that the test of the first i draft tokens passes.

    With S_i the sum of (r_i p - q)+ over the token after them, h_i = S_i / (S_i + 1 - r_i), and
    r_i for the whole draft. S_i is r_i less the overlap of r_i p and q, and q is sparse, so only
    its entries are read.
    """
    after = inputs.row_index[:, 1:-1].unsqueeze(-1)
    p = probabilities[after, q.token_ids[:, 1:]].to(torch.float64)
    mass = q.masses[:, 1:].to(torch.float64) / TOTAL_MASS
    ratio = ratios[:, :-1]
    overlap = torch.minimum(ratio.unsqueeze(-1) * p, mass).sum(dim=-1)
    rest = (ratio - overlap).clamp(min=0.0)
    # At r = 1 the quotient is 1 (or 0/0 when p = q, where the last test passes for certain).
    inner = torch.where(ratio < 1.0, rest / (rest + 1.0 - ratio).clamp(min=1e-300), 1.0)
    thresholds = torch.cat((inner, ratios[:, -1:]), dim=1)
    steps = torch.arange(1, ratios.shape[1] + 1, device=ratios.device)
    return torch.where(steps == inputs.draft_lengths.unsqueeze(1), ratios, thresholds)


def longest(passed: Tensor, lengths: Tensor) -> Tensor:
    """The largest i whose test passed, 0 if none; passed [B, K] bool, lengths [B].

    A failed test must not stop the scan: each prefix has its own test, and stopping at the first
    failure is no longer the rule of the paper, nor exact.
    """
    steps = torch.arange(1, passed.shape[1] + 1, device=passed.device)
    counted = passed & (steps <= lengths.unsqueeze(1))
    return torch.where(counted, steps, 0).amax(dim=1)
