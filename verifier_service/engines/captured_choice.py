"""How a captured step chooses tokens: as much work as its neediest sequence asks for, no more.

Knows samplings, logits and the inputs of a bucket; does not know models, captures or the cache.
Every way goes through `sampling.process_logits`, as prefill and uncaptured steps do, so that a row
gets the same token whichever way its neighbours made necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import pairwise

import torch
from torch import Tensor

from verifier_service.engines.base import Chunk
from verifier_service.engines.editing import edits_logits
from verifier_service.engines.step_inputs import StepInputs
from verifier_service.messages import Sampling
from verifier_service.noise import VocabularyNoise, tensor_keys
from verifier_service.rejection.chain import emit, leading
from verifier_service.sampling import RowSampling, SamplingFlags, is_greedy, process_logits

# Processed logits [R, V], seeds, positions and temperatures [R], noise -> token ids [R].
Perturb = Callable[[Tensor, Tensor, Tensor, Tensor, VocabularyNoise], Tensor]

# Rows whose scores are in memory at once: all of a bucket's would be gigabytes where the vocabulary
# is large and the bucket too.
_ROWS_AT_ONCE = 128


class Choosing(IntEnum):
    """What a sequence's tokens need beside its logits; a step takes its sequences' largest."""

    GREEDY = 0
    RANDOM = 1
    FILTERED = 2
    # Edits or log-probabilities: not in the captured step.
    OUTSIDE = 3


_FLAGS = {
    Choosing.RANDOM: SamplingFlags(any_top_k=False, any_top_p=False, any_min_p=False),
    Choosing.FILTERED: SamplingFlags(),
}


def choosing_of(sampling: Sampling) -> Choosing:
    """What the tokens of one request need. A grammar's masks come with steps, not with requests."""
    if sampling.logprobs >= 0 or edits_logits(sampling):
        return Choosing.OUTSIDE
    if is_greedy(sampling):
        return Choosing.GREEDY
    limited = sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
    return Choosing.FILTERED if limited else Choosing.RANDOM


class Needs:
    """What steps need, where the sequences are mostly those of the step before."""

    def __init__(self) -> None:
        self._samplings: list[Sampling] = []
        self._most = Choosing.GREEDY

    def of(self, chunks: Sequence[Chunk]) -> Choosing:
        """The most that any of these chunks, at least one, needs."""
        samplings = [chunk.sampling for chunk in chunks]
        if samplings != self._samplings:
            self._most = max(map(choosing_of, samplings))
        # Even where they are equal: what is the same object is compared for nothing.
        self._samplings = samplings
        for chunk in chunks:
            if chunk.mask is not None:
                return Choosing.OUTSIDE
        return self._most


def choose_rows(
    logits: Tensor,
    inputs: StepInputs,
    choosing: Choosing,
    noise: VocabularyNoise,
    perturb: Perturb,
) -> Tensor:
    """The target's choice at each token of a bucket, int64 [T]; logits [T, V].

    Reads nothing back and needs memory for some of the rows only.
    """
    if choosing is Choosing.GREEDY:
        return logits.argmax(dim=-1)
    flags = _FLAGS[choosing]
    owner = inputs.owner
    rows = RowSampling(
        temperature=inputs.temperature[owner],
        top_k=inputs.top_k[owner],
        top_p=inputs.top_p[owner],
        min_p=inputs.min_p[owner],
        seed=inputs.seeds[owner],
        # The token behind the one that stands there.
        position=inputs.positions + 1,
    )
    parts = []
    for part in _parts(logits.shape[0]):
        some = rows.select(part)
        processed = process_logits(logits[part], some, flags)
        parts.append(perturb(processed, some.seed, some.position, some.temperature, noise))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def choose_perturbed(
    processed: Tensor, seed: Tensor, position: Tensor, temperature: Tensor, noise: VocabularyNoise
) -> Tensor:
    """`sampling.choose` as one function for a compiler to fuse; int64 [R].

    processed [R, V] float32; seed, position [R] int64; temperature [R] float32, 0 for greedy rows.
    """
    shift = noise.exponential(tensor_keys(seed, position)).log()
    perturbed = (processed - shift).argmax(dim=-1)
    return torch.where(temperature > 0, perturbed, processed.argmax(dim=-1))


def rows_with_logits(inputs: StepInputs) -> Tensor | None:
    """The tokens of a bucket that have logits, int64 [R] into its tokens; None for all."""
    return inputs.rows if inputs.rows.shape[0] else None


def choosing_inputs(inputs: StepInputs) -> StepInputs:
    """The inputs of the tokens with logits alone, as if a bucket had no others."""
    rows = rows_with_logits(inputs)
    if rows is None:
        return inputs
    return replace(
        inputs,
        ids=inputs.ids[rows],
        positions=inputs.positions[rows],
        owner=inputs.owner[rows],
        cu_query=inputs.cu_rows,
    )


def verdict_rows(chosen: Tensor, inputs: StepInputs, width: int) -> Tensor:
    """Coupled verdicts of a bucket's sequences, int64 [B, width + 2]: accepted, then tokens.

    `chosen` [T] is the target's choice at each token; the draft tokens are the ids behind each
    sequence's first one, at most `width`.
    """
    last = chosen.shape[0] - 1
    steps = torch.arange(width + 1, device=chosen.device)
    drafts = inputs.drafts
    at = inputs.cu_query[:-1, None].long() + torch.minimum(steps, drafts[:, None])
    target = chosen[at.clamp(max=last)]
    ids = inputs.ids[(at + 1).clamp(max=last)][:, :width]
    accepted = leading(ids == target[:, :-1], drafts)
    own = target.gather(1, accepted.unsqueeze(1)).squeeze(1)
    result = emit(ids, accepted, own)
    return torch.cat((accepted.unsqueeze(1), result.tokens), dim=1)


def _parts(rows: int) -> list[slice]:
    """Equal parts, none of a single row: one row is a case of its own for a compiler."""
    count = -(-rows // _ROWS_AT_ONCE)
    bounds = [rows * number // count for number in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(bounds)]
