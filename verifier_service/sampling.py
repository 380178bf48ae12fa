"""From logits to token ids: the processed target distribution and its exact choice.

Knows rows of logits and each row's sampling; does not know sequences, drafts or rules. Shapes
depend only on the number of rows R and the vocabulary V. What a batch contains is told by the
host (`SamplingFlags`), never read back from the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verifier_service.filters import filter_logits
from verifier_service.messages import Sampling
from verifier_service.noise import VocabularyNoise, row_keys
from verifier_service.transfers import to_device

# Quotients by less could leave float32; such rows are greedy, as they are in every other sense.
GREEDY_BELOW = 1e-5


def is_greedy(sampling: Sampling) -> bool:
    """Whether a request takes the argmax: temperature (nearly) 0, or only one token allowed."""
    return sampling.temperature < GREEDY_BELOW or sampling.top_k == 1


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Sampling of each row, tensors on the engine's device.

    `temperature` [R] float32, exactly 0 for greedy rows; `top_k` [R] int64, 0 for no limit;
    `top_p` [R] float32, 1 for no limit; `min_p` [R] float32, 0 for no limit; `seed` [R] int64;
    `position` [R] int64, the absolute index (prompt and output) of the token that the row chooses.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor

    def select(self, rows: Tensor | slice) -> RowSampling:
        """The sampling of some rows, by index [n] or side by side."""
        return RowSampling(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.seed[rows],
            self.position[rows],
        )


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """What a batch contains, known to the host; a flag may be true in vain, never false in vain.

    `any_tempered`: a random row has a temperature other than 1.
    """

    any_greedy: bool = True
    any_random: bool = True
    any_tempered: bool = True
    any_top_k: bool = True
    any_top_p: bool = True
    any_min_p: bool = True

    @classmethod
    def of(cls, samplings: Iterable[Sampling]) -> SamplingFlags:
        """The flags of a batch of requests."""
        greedy = random = tempered = top_k = top_p = min_p = False
        for sampling in samplings:
            if is_greedy(sampling):
                greedy = True
                continue
            random = True
            tempered |= sampling.temperature != 1.0
            top_k |= sampling.top_k > 0
            top_p |= sampling.top_p < 1.0
            min_p |= sampling.min_p > 0.0
        return cls(greedy, random, tempered, top_k, top_p, min_p)


def pack_rows(
    entries: Sequence[tuple[Sampling, int, int]],
    device: torch.device | str = "cpu",
    num_rows: int | None = None,
) -> RowSampling:
    """Row tensors of `entries` (sampling, position of the first row, number of rows), in order.

    `num_rows` pads with greedy rows up to a bucket's size. Raises ValueError if it is too small.
    """
    used = sum(count for _, _, count in entries)
    total = used if num_rows is None else num_rows
    if used > total:
        raise ValueError(f"num_rows {total}: the batch has {used} rows")
    temperature = [0.0] * total
    top_k = [0] * total
    top_p = [1.0] * total
    min_p = [0.0] * total
    seed = [0] * total
    position = [0] * total
    row = 0
    for sampling, first, count in entries:
        end = row + count
        if not is_greedy(sampling):
            temperature[row:end] = [sampling.temperature] * count
            top_k[row:end] = [sampling.top_k] * count
            top_p[row:end] = [sampling.top_p] * count
            min_p[row:end] = [sampling.min_p] * count
            seed[row:end] = [sampling.seed] * count
        position[row:end] = range(first, first + count)
        row = end
    real = to_device(torch.tensor([temperature, top_p, min_p], dtype=torch.float32), device)
    whole = to_device(torch.tensor([top_k, seed, position], dtype=torch.int64), device)
    return RowSampling(
        temperature=real[0],
        top_k=whole[0],
        top_p=real[1],
        min_p=real[2],
        seed=whole[1],
        position=whole[2],
    )


def process_logits(logits: Tensor, rows: RowSampling, flags: SamplingFlags) -> Tensor:
    """The logits [R, V] of the target's processed distribution, float32.

    Temperature, then min-p, top-k and top-p, as vLLM orders them; filtered tokens become -inf.
    What else a request asks for (`logit_edits`) is in `logits` already. Greedy rows keep their
    values. `logits` is not written to; the result may be the same tensor when nothing was to be
    done. float64 logits stay float64 (for tests that enumerate).
    """
    processed = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    if not flags.any_random:
        return processed
    random = rows.temperature > 0
    if flags.any_tempered:
        divisor = torch.where(random, rows.temperature, 1.0).to(processed.dtype)
        processed = processed / divisor.unsqueeze(-1)
    if flags.any_top_k or flags.any_top_p or flags.any_min_p:
        # Rows that `pack_rows` packed as greedy have no limits.
        processed = filter_logits(processed, rows.top_k, rows.top_p, rows.min_p)
    return processed


def choose(
    processed: Tensor, rows: RowSampling, flags: SamplingFlags, noise: VocabularyNoise
) -> Tensor:
    """Token id of each row, int64 [R]: argmax of processed logits plus the shared noise.

    A function of (processed row, seed, position) alone, so a row gets the same token whatever
    stands beside it and whether it verifies a draft or not. Greedy rows take the plain argmax,
    the lowest id among ties.
    """
    if not flags.any_random:
        return argmax(processed)
    chosen = noise.of_scores(processed, row_keys(rows.seed, rows.position))
    if flags.any_greedy:
        chosen = torch.where(rows.temperature > 0, chosen, argmax(processed))
    return chosen


def choose_with_gap(
    processed: Tensor, rows: RowSampling, flags: SamplingFlags, noise: VocabularyNoise
) -> tuple[Tensor, Tensor]:
    """`choose`, and by how much each winner's perturbed score beats the second, float32 [R].

    For telling numerical divergences from wrong ones; not for the hot path. The gap is inf where
    only one token is allowed.
    """
    chosen = choose(processed, rows, flags, noise)
    shift = noise.exponential(row_keys(rows.seed, rows.position)).log()
    scores = processed - torch.where((rows.temperature > 0).unsqueeze(-1), shift, 0.0)
    best = scores.gather(1, chosen.unsqueeze(1))
    rest = scores.scatter(1, chosen.unsqueeze(1), -torch.inf)
    return chosen, (best - rest.amax(dim=1, keepdim=True)).squeeze(1)


def argmax(values: Tensor) -> Tensor:
    """Index of each row's largest value, int64 [R], the lowest among ties."""
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        # numpy's is vectorised, torch's is not: 5 against 100 microseconds for 49,152 values.
        return torch.from_numpy(values.numpy().argmax(axis=-1))
    return values.argmax(dim=-1)
