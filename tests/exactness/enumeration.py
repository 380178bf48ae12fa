"""The exact law of a round's output, composed from the rules' own functions in float64.

Knows the rules' parts (thresholds, scans, residuals) and the toy; draws nothing. A round's
output is cut or continued by the target to K + 1 tokens, so that laws can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.sparse_q import TOTAL_MASS, quantise
from tests.toy import Toy
from verifier_service.messages import RejectionRule, Sampling
from verifier_service.rejection import SparseQ, VerifyInputs
from verifier_service.rejection.block import block_thresholds, longest, running_ratios
from verifier_service.rejection.chain import (
    draft_masses,
    leading,
    one_hot,
    residual_weights,
    target_probabilities,
)
from verifier_service.rejection.standard import token_thresholds
from verifier_service.sampling import SamplingFlags, pack_rows

Law = dict[tuple[int, ...], float]
# How many of a block's draft tokens are verified, given these.
Cut = Callable[[tuple[int, ...]], int]
# Logits [B * (K + 1), V] behind each of the blocks' tokens, from blocks [B, K].
Rows = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Enumerated:
    """Exact law of the first K + 1 tokens and the mean number of tokens one round emits."""

    law: Law
    acceptance_length: float


def quantised(draft: Toy, entries: int) -> tuple[Tensor, Tensor]:
    """Ids and masses [V * V, entries] of a draft model's truncated, quantised q."""
    ids = torch.zeros(draft.logits.shape[0], entries, dtype=torch.int64)
    masses = torch.zeros_like(ids)
    for context, row in enumerate(draft.probabilities.numpy()):
        kept, mass = quantise(row, entries)
        ids[context, : len(kept)] = torch.from_numpy(kept)
        masses[context, : len(kept)] = torch.from_numpy(mass)
    return ids, masses


def enumerate_round(
    rule: RejectionRule,
    target: Toy,
    draft: Toy,
    k: int,
    *,
    context: int = 0,
    entries: int | None = None,
    deterministic: bool = False,
    cut: Cut | None = None,
    claimed: tuple[Tensor, Tensor] | None = None,
    rows: Rows | None = None,
) -> Enumerated:
    """The law of one round of drafts sampled from `draft`'s quantised q, verified by `rule`.

    `deterministic` drafts the draft model's argmax with one-hot q. `cut` shortens blocks.
    `claimed` is what the rule is told instead of the q that was sampled from. `rows` are the logits
    that the rule sees instead of the target's table.
    """
    true_q = quantised(draft, entries or draft.vocab_size)
    drafted = _blocks(target, draft, true_q, k, context, deterministic)
    blocks = torch.tensor([tokens for tokens, _ in drafted])
    lengths = torch.tensor([k if cut is None else cut(tokens) for tokens, _ in drafted])
    inputs, q = _inputs(target, claimed or true_q, context, blocks, lengths, deterministic)
    if rows is not None:
        inputs = replace(inputs, logits=rows(blocks))
    chances, own = _outcomes(rule, inputs, q)
    law: Law = {}
    mean = 0.0
    continuations = _Continuations(target, context)
    for b, (tokens, weight) in enumerate(drafted):
        for accepted in range(k + 1):
            chance = weight * chances[b][accepted]
            mean += chance * (accepted + 1)
            for token, p in enumerate(own[b][accepted]):
                if chance * p > 0.0:
                    head = (*tokens[:accepted], token)
                    for key, share in continuations.of(head, k + 1):
                        law[key] = law.get(key, 0.0) + chance * p * share
    return Enumerated(law, mean)


def _blocks(
    target: Toy,
    draft: Toy,
    q: tuple[Tensor, Tensor],
    k: int,
    context: int,
    deterministic: bool,
) -> list[tuple[tuple[int, ...], float]]:
    """Every block that can be drafted, with its probability."""
    blocks: list[tuple[tuple[int, ...], float, int]] = [((), 1.0, context)]
    for _ in range(k):
        grown = []
        for tokens, weight, at in blocks:
            if deterministic:
                choices = [(int(draft.logits[at].argmax()), TOTAL_MASS)]
            else:
                choices = list(zip(q[0][at].tolist(), q[1][at].tolist(), strict=True))
            for token, mass in choices:
                if mass:
                    after = target.advance(at, token)
                    grown.append(((*tokens, token), weight * mass / TOTAL_MASS, after))
        blocks = grown
    return [(tokens, weight) for tokens, weight, _ in blocks]


def _inputs(
    target: Toy,
    told: tuple[Tensor, Tensor],
    context: int,
    blocks: Tensor,
    lengths: Tensor,
    deterministic: bool,
) -> tuple[VerifyInputs, SparseQ]:
    """All blocks [B, K] as one batch in float64."""
    batch, k = blocks.shape
    contexts = [torch.full((batch,), context)]
    for column in blocks.unbind(1):
        contexts.append(target.advance(contexts[-1], column))
    after = torch.stack(contexts, dim=1)
    q = one_hot(blocks) if deterministic else SparseQ(told[0][after[:, :k]], told[1][after[:, :k]])
    inputs = VerifyInputs(
        logits=target.logits[after.flatten()],
        rows=pack_rows([(Sampling(), 0, k + 1)] * batch),
        flags=SamplingFlags.of([Sampling()]),
        row_index=torch.arange(batch * (k + 1)).view(batch, k + 1),
        draft_ids=blocks,
        draft_lengths=lengths,
        q=q,
    )
    return inputs, q


def _outcomes(
    rule: RejectionRule, inputs: VerifyInputs, q: SparseQ
) -> tuple[list[list[float]], list[list[list[float]]]]:
    """Chance of each accepted count [B, K + 1] and the own token's law then [B, K + 1, V]."""
    probabilities = inputs.logits.softmax(dim=-1)
    p = target_probabilities(probabilities, inputs)
    mass = draft_masses(q, inputs.draft_ids)
    batch, k = p.shape
    scales = torch.ones(batch, k + 1, dtype=torch.float64)
    scan: Callable[[Tensor, Tensor], Tensor]
    if rule is RejectionRule.BLOCK:
        ratios = running_ratios(p, mass)
        thresholds = block_thresholds(probabilities, ratios, q, inputs)
        scales[:, 1:] = ratios
        scan = longest
    else:
        thresholds = token_thresholds(p, mass)
        scan = leading
    chances = torch.zeros(batch, k + 1, dtype=torch.float64)
    for pattern in itertools.product((False, True), repeat=k):
        passed = torch.tensor(pattern).expand(batch, k)
        chance = torch.where(passed, thresholds, 1.0 - thresholds).prod(dim=1, keepdim=True)
        accepted = scan(passed, inputs.draft_lengths)
        chances.scatter_add_(1, accepted.unsqueeze(1), chance)
    own = []
    for count in range(k + 1):
        at = torch.full((batch,), count)
        row = probabilities[inputs.row_index[:, count]]
        weights = residual_weights(row, scales[:, count], q, at, inputs.draft_lengths)
        own.append(weights / weights.sum(dim=1, keepdim=True))
    return chances.tolist(), torch.stack(own, dim=1).tolist()


class _Continuations:
    """What the target makes of the beginnings of an output, remembered by context."""

    def __init__(self, target: Toy, context: int) -> None:
        self._target = target
        self._context = context
        self._laws: dict[tuple[int, int], Law] = {}

    def of(self, head: tuple[int, ...], length: int) -> list[tuple[tuple[int, ...], float]]:
        """Every output of `length` tokens that begins with `head`, with its conditional share."""
        at = self._context
        for token in head:
            at = self._target.advance(at, token)
        left = (at, length - len(head))
        if left not in self._laws:
            self._laws[left] = self._target.law(*left)
        return [(head + rest, share) for rest, share in self._laws[left].items()]
