"""Steps that all rules share: prefixes of a chain, private draws, residuals. Knows no rule."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.coupling import Stream
from outrider.sparse_q import TOTAL_MASS
from verifier_service.noise import VocabularyNoise, hashes, row_keys, uniform, words
from verifier_service.rejection.inputs import SparseQ, VerifyInputs, VerifyResult
from verifier_service.sampling import argmax


def leading(passed: Tensor, lengths: Tensor) -> Tensor:
    """Length of the longest prefix that passed, int64 [B]; passed [B, K] bool, lengths [B]."""
    steps = torch.arange(passed.shape[1], device=passed.device)
    inside = steps < lengths.unsqueeze(1)
    return (passed & inside).to(torch.int64).cumprod(dim=1).sum(dim=1)


def emit(draft_ids: Tensor, accepted: Tensor, own: Tensor) -> VerifyResult:
    """Accepted drafts, the target's own token [B], then -1."""
    steps = torch.arange(draft_ids.shape[1] + 1, device=draft_ids.device)
    tokens = torch.nn.functional.pad(draft_ids, (0, 1))
    tokens = torch.where(steps < accepted.unsqueeze(1), tokens, -1)
    return VerifyResult(accepted, tokens.scatter(1, accepted.unsqueeze(1), own.unsqueeze(1)))


def acceptance_uniforms(inputs: VerifyInputs) -> Tensor:
    """One uniform for each draft token, float64 [B, K].

    Keyed by where the round starts and the offset in it, not by the token's position: the block
    rule reads tests behind the prefix it accepts, and a later round that met the same number
    again at the same position would not be independent of them.
    """
    first = inputs.row_index[:, 0]
    keys = row_keys(inputs.rows.seed[first], inputs.rows.position[first], Stream.ACCEPT)
    offsets = torch.arange(inputs.draft_ids.shape[1], device=first.device)
    return uniform(words(keys, hashes(offsets)))


def one_hot(draft_ids: Tensor) -> SparseQ:
    """q of drafts that are a function of their context: all mass on the draft itself."""
    ids = draft_ids.unsqueeze(-1)
    return SparseQ(ids, torch.full_like(ids, TOTAL_MASS))


def draft_masses(q: SparseQ, draft_ids: Tensor) -> Tensor:
    """q of each draft token, float64 [B, K]."""
    mine = torch.where(q.token_ids == draft_ids.unsqueeze(-1), q.masses, 0).sum(dim=-1)
    return mine.to(torch.float64) / TOTAL_MASS


def target_probabilities(probabilities: Tensor, inputs: VerifyInputs) -> Tensor:
    """p of each draft token after its predecessors, float64 [B, K]; probabilities [R, V]."""
    return probabilities[inputs.row_index[:, :-1], inputs.draft_ids].to(torch.float64)


def residual_weights(p: Tensor, scale: Tensor, q: SparseQ, at: Tensor, lengths: Tensor) -> Tensor:
    """Weights of the target's own token when `at` drafts were accepted, [B, V].

    The positive part of scale * p - q where a draft was refused, p itself after a full
    acceptance. p [B, V] is the target's distribution after `at` drafts, scale [B].
    """
    if q.token_ids.shape[1] == 0:
        return p
    refused = at < lengths
    place = (
        at.clamp(max=q.token_ids.shape[1] - 1).view(-1, 1, 1).expand(-1, 1, q.token_ids.shape[2])
    )
    ids = q.token_ids.gather(1, place).squeeze(1)
    mass = q.masses.gather(1, place).squeeze(1).to(torch.float64) / TOTAL_MASS
    mass = torch.where(refused.unsqueeze(1), mass, 0.0)
    scaled = p * torch.where(refused, scale, 1.0).to(p.dtype).unsqueeze(1)
    weights = scaled.scatter_add(1, ids, -mass.to(p.dtype)).clamp_(min=0)
    # p = q up to rounding: a refusal has probability zero, and p is as right as anything.
    empty = weights.amax(dim=1, keepdim=True) <= 0
    return torch.where(empty, p, weights)


def draw(weights: Tensor, inputs: VerifyInputs, at: Tensor, noise: VocabularyNoise) -> Tensor:
    """A token of each sequence with probability ~ weights [B, V], int64 [B].

    Keyed by the token's position `at` places after the round's start: a position's own token is
    drawn once, since it ends the round.
    """
    first = inputs.row_index[:, 0]
    position = inputs.rows.position[first] + at
    return noise.of_weights(weights, row_keys(inputs.rows.seed[first], position, Stream.RESAMPLE))


def greedy_rows(inputs: VerifyInputs) -> tuple[Tensor, Tensor]:
    """Which sequences are greedy, bool [B], and the argmax of every row, int64 [R]."""
    return inputs.rows.temperature[inputs.row_index[:, 0]] <= 0, argmax(inputs.logits)


def own_token(
    probabilities: Tensor,
    scale: Tensor,
    q: SparseQ,
    accepted: Tensor,
    inputs: VerifyInputs,
    noise: VocabularyNoise,
) -> Tensor:
    """The token that ends each sequence's round, int64 [B]: residual, bonus, or argmax."""
    rows = inputs.row_index.gather(1, accepted.unsqueeze(1)).squeeze(1)
    weights = residual_weights(probabilities[rows], scale, q, accepted, inputs.draft_lengths)
    own = draw(weights, inputs, accepted, noise)
    if inputs.flags.any_greedy:
        greedy, best = greedy_rows(inputs)
        own = torch.where(greedy, best[rows], own)
    return own
