"""Whole generations of the toy, many sequences at once, through the real `verify`.

Knows the toy, the kinds of draft and the round loop; asserts nothing. Each sequence runs rounds
of K drafts until it has the wanted number of tokens; what a round emits beyond is cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from outrider.coupling import gumbel
from outrider.sparse_q import sample_rows
from tests.exactness.enumeration import Law, quantised
from tests.toy import Toy
from verifier_service.messages import RejectionRule, Sampling
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection import SparseQ, VerifyInputs, verify
from verifier_service.sampling import SamplingFlags, pack_rows, process_logits

# Where outputs begin: an absolute position, as if a prompt came before.
START = 5


class DraftKind(Enum):
    NONE = "none"
    ONE_HOT = "one_hot"
    COUPLED = "coupled"
    SPARSE = "sparse"
    RANDOM = "random"


@dataclass(frozen=True)
class Generated:
    """Output tokens [B, length], and mean accepted drafts of a round."""

    tokens: Tensor
    accepted: float


# Draft lengths [B] of a round, from its drafts [B, K] and the round's number.
Lengths = Callable[[Tensor, int], Tensor]


def generate(
    rule: RejectionRule,
    kind: DraftKind,
    target: Toy,
    draft: Toy,
    sampling: Sampling,
    *,
    k: int,
    length: int,
    seeds: Tensor,
    context: int = 0,
    entries: int | None = None,
    lengths: Lengths | None = None,
) -> Generated:
    """Outputs of one sequence for each seed, by rounds of K drafts."""
    batch, vocab = len(seeds), target.vocab_size
    q_table = quantised(draft, entries or vocab)
    noise = VocabularyNoise(vocab)
    flags = SamplingFlags.of([sampling])
    one = pack_rows([(sampling, 0, 1)])
    rows_of_contexts = one.select(torch.zeros(vocab**2, dtype=torch.int64))
    table = process_logits(target.logits.float(), rows_of_contexts, flags)
    at = torch.full((batch,), context)
    done = torch.zeros(batch, dtype=torch.int64)
    output = torch.full((batch, length + k + 1), -1)
    accepted = rounds = 0
    for number in itertools.count():
        base = START + done
        drafts, contexts, q = _draft(kind, draft, q_table, at, base, seeds, k)
        wanted = torch.full((batch,), k) if lengths is None else lengths(drafts, number)
        if kind is DraftKind.NONE:
            wanted = torch.zeros(batch, dtype=torch.int64)
        rows = one.select(torch.zeros(batch * (k + 1), dtype=torch.int64))
        rows = replace(
            rows,
            seed=seeds.repeat_interleave(k + 1),
            position=(base.unsqueeze(1) + torch.arange(k + 1)).flatten(),
        )
        inputs = VerifyInputs(
            logits=table[contexts.flatten()],
            rows=rows,
            flags=flags,
            row_index=torch.arange(batch * (k + 1)).view(batch, k + 1),
            draft_ids=drafts,
            draft_lengths=wanted,
            q=q,
        )
        result = verify(rule, inputs, noise)
        places = done.unsqueeze(1) + torch.arange(k + 1)
        real = torch.arange(k + 1) <= result.accepted.unsqueeze(1)
        running = (done < length).unsqueeze(1)
        kept = torch.where(real & running, result.tokens, output.gather(1, places))
        output.scatter_(1, places, kept)
        accepted += int(result.accepted[done < length].sum())
        rounds += int((done < length).sum())
        last = result.tokens.gather(1, result.accepted.unsqueeze(1)).squeeze(1)
        after = target.advance(contexts.gather(1, result.accepted.unsqueeze(1)).squeeze(1), last)
        at = torch.where(running.squeeze(1), after, at)
        done = torch.where(running.squeeze(1), (done + result.accepted + 1).clamp(max=length), done)
        if bool((done >= length).all()):
            return Generated(output[:, :length], accepted / rounds)
    raise AssertionError("unreachable")


def _draft(
    kind: DraftKind,
    draft: Toy,
    q_table: tuple[Tensor, Tensor],
    at: Tensor,
    base: Tensor,
    seeds: Tensor,
    k: int,
) -> tuple[Tensor, Tensor, SparseQ | None]:
    """Drafts [B, K], contexts before each token [B, K + 1], and q."""
    vocab = draft.vocab_size
    log_q = draft.logits.log_softmax(dim=-1)
    contexts, tokens = [at], []
    for j in range(k):
        here = contexts[-1]
        if kind is DraftKind.SPARSE:
            masses = q_table[1][here].numpy()
            index = torch.from_numpy(sample_rows(masses, seeds.numpy(), base.numpy(), j))
            token = q_table[0][here].gather(1, index.unsqueeze(1)).squeeze(1)
        elif kind is DraftKind.COUPLED:
            shared = gumbel(seeds.numpy(), (base + j).numpy(), np.arange(vocab))
            token = (log_q[here] + torch.from_numpy(shared)).argmax(dim=1)
        elif kind is DraftKind.RANDOM:
            token = (seeds * 7 + base * 13 + j * 5) % 1013 % vocab
        else:
            token = log_q[here].argmax(dim=1)
        tokens.append(token)
        contexts.append(draft.advance(here, token))
    drafts = torch.stack(tokens, dim=1) if tokens else torch.empty(len(at), 0, dtype=torch.int64)
    after = torch.stack(contexts, dim=1)
    q = None
    if kind is DraftKind.SPARSE:
        q = SparseQ(q_table[0][after[:, :k]], q_table[1][after[:, :k]])
    return drafts, after, q


def empirical(tokens: Tensor, vocab_size: int) -> Law:
    """Relative frequency of each output."""
    length = tokens.shape[1]
    weights = vocab_size ** torch.arange(length - 1, -1, -1)
    counts = torch.bincount((tokens * weights).sum(dim=1), minlength=vocab_size**length)
    outputs = itertools.product(range(vocab_size), repeat=length)
    shares = (counts / len(tokens)).tolist()
    return dict(zip(outputs, shares, strict=True))


def expected_variation(law: Law, samples: int) -> float:
    """Mean total variation between a law and that many draws from it."""
    return 0.5 * sum(math.sqrt(2 * p * (1 - p) / (math.pi * samples)) for p in law.values())
