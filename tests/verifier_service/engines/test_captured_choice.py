"""Choices that can be captured against those of uncaptured steps, row by row."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from verifier_service import filters
from verifier_service.engines.base import Chunk
from verifier_service.engines.captured_choice import (
    Choosing,
    Needs,
    choose_perturbed,
    choose_rows,
    choosing_of,
    verdict_rows,
)
from verifier_service.engines.step_inputs import StepInputs
from verifier_service.messages import Sampling
from verifier_service.noise import VocabularyNoise
from verifier_service.sampling import SamplingFlags, choose, pack_rows, process_logits

VOCAB = 200
NOISE = VocabularyNoise(VOCAB)
GREEDY = Sampling(temperature=0.0)
RANDOM = Sampling(temperature=0.9, seed=11)
FILTERED = Sampling(temperature=1.2, seed=12, top_k=9, top_p=0.8, min_p=0.02)


def some_sampling(source: random.Random) -> Sampling:
    return Sampling(
        temperature=source.choice([0.0, 0.3, 1.0, 2.0]),
        seed=source.randrange(-(1 << 63), 1 << 63),
        top_k=source.choice([0, 1, 3, 50, VOCAB, 10_000]),
        top_p=source.choice([1.0, 0.9, 0.2, 1e-6]),
        min_p=source.choice([0.0, 0.0, 0.1, 1.0]),
    )


def step_of(
    samplings: list[Sampling], starts: list[int], per: int, device: str = "cpu"
) -> StepInputs:
    """`per` tokens of each sequence."""
    count = len(samplings)
    rows = pack_rows([(sampling, 0, 1) for sampling in samplings], device)
    none = torch.zeros(0, device=device)
    first = torch.tensor(starts, device=device).repeat_interleave(per)
    return StepInputs(
        ids=torch.zeros(count * per, dtype=torch.int64, device=device),
        positions=first + torch.arange(per, device=device).repeat(count),
        slots=none,
        owner=torch.arange(count, device=device).repeat_interleave(per),
        seeds=torch.tensor([s.seed for s in samplings], device=device),
        drafts=torch.full((count,), per - 1, device=device),
        top_k=rows.top_k,
        cu_query=torch.arange(0, count * per + 1, per, dtype=torch.int32, device=device),
        cu_key=none,
        used=none,
        temperature=rows.temperature,
        top_p=rows.top_p,
        min_p=rows.min_p,
        rows=torch.zeros(0, dtype=torch.int64, device=device),
        cu_rows=none,
        table=none,
    )


def as_uncaptured(logits: Tensor, samplings: list[Sampling], starts: list[int], per: int) -> Tensor:
    """What `Chooser` chooses: a row's token stands one position behind the row's own."""
    entries = [(s, start + 1, per) for s, start in zip(samplings, starts, strict=True)]
    rows, flags = pack_rows(entries), SamplingFlags.of(samplings)
    return choose(process_logits(logits, rows, flags), rows, flags, NOISE)


def normal(rows: int, seed: int, scale: float = 3.0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def by_sort(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    threshold = filters.thresholds_by_sort(logits, top_k, top_p, min_p)
    return logits.masked_fill(logits < threshold.unsqueeze(-1), -torch.inf)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sorted_rows", [False, True], ids=["cpu", "sort"])
def test_filtered_rows_get_what_an_uncaptured_step_chooses(
    seed: int, sorted_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some 200 rows, more than are in memory at once; ties are frequent at one of the scales."""
    source = random.Random(seed)
    samplings = [some_sampling(source) for _ in range(67)]
    starts = [source.randrange(1000) for _ in samplings]
    logits = normal(3 * 67, seed)
    if seed % 2:
        logits = logits.round()
    wanted = as_uncaptured(logits, samplings, starts, 3)
    if sorted_rows:
        monkeypatch.setattr(filters, "_filter_one_by_one", by_sort)
    inputs = step_of(samplings, starts, 3)
    found = choose_rows(logits, inputs, Choosing.FILTERED, NOISE, choose_perturbed)
    assert torch.equal(found, wanted)


def test_random_and_greedy_rows_get_what_an_uncaptured_step_chooses() -> None:
    samplings = [replace(RANDOM, seed=seed, temperature=seed / 4) for seed in range(7)]
    logits, starts = normal(35, 1), list(range(40, 47))
    found = choose_rows(
        logits, step_of(samplings, starts, 5), Choosing.RANDOM, NOISE, choose_perturbed
    )
    assert torch.equal(found, as_uncaptured(logits, samplings, starts, 5))
    assert torch.equal(found[:5], logits[:5].argmax(dim=-1))
    greedy = choose_rows(
        logits, step_of([GREEDY] * 7, starts, 5), Choosing.GREEDY, NOISE, choose_perturbed
    )
    assert torch.equal(greedy, logits.argmax(dim=-1))


def test_a_row_gets_its_token_whatever_its_neighbours_need() -> None:
    logits = normal(12, 2)
    alone = choose_rows(
        logits, step_of([RANDOM] * 6, [5] * 6, 2), Choosing.RANDOM, NOISE, choose_perturbed
    )
    samplings = [RANDOM] * 5 + [FILTERED]
    beside = choose_rows(
        logits, step_of(samplings, [5] * 6, 2), Choosing.FILTERED, NOISE, choose_perturbed
    )
    assert torch.equal(alone[:10], beside[:10])
    assert not torch.equal(alone[10:], beside[10:])


@pytest.mark.parametrize("choosing", [Choosing.GREEDY, Choosing.RANDOM, Choosing.FILTERED])
@pytest.mark.parametrize("tokens", [2, 64, 129, 300])
def test_nothing_is_read_by_the_host(choosing: Choosing, tokens: int) -> None:
    """Tensors without contents: whoever reads one, or mixes it with the host's, fails."""
    inputs = step_of([FILTERED] * tokens, [3] * tokens, 1, "meta")
    logits = torch.zeros(tokens, VOCAB, dtype=torch.bfloat16, device="meta")
    noise = VocabularyNoise(VOCAB, "meta")
    sizes = []

    def perturb(processed: Tensor, *rest: object) -> Tensor:
        sizes.append(processed.shape[0])
        return choose_perturbed(processed, *rest)  # type: ignore[arg-type]

    chosen = choose_rows(logits, inputs, choosing, noise, perturb)
    assert verdict_rows(chosen, inputs, 4).shape == (tokens, 6)
    assert all(2 <= size <= 128 for size in sizes)


@pytest.mark.parametrize(
    ("sampling", "choosing"),
    [
        (GREEDY, Choosing.GREEDY),
        (replace(GREEDY, top_k=3, top_p=0.1), Choosing.GREEDY),
        (replace(FILTERED, top_k=1), Choosing.GREEDY),
        (RANDOM, Choosing.RANDOM),
        (replace(RANDOM, top_k=2), Choosing.FILTERED),
        (replace(RANDOM, top_p=0.99), Choosing.FILTERED),
        (replace(RANDOM, min_p=0.01), Choosing.FILTERED),
        (replace(RANDOM, logprobs=0), Choosing.OUTSIDE),
        (replace(GREEDY, min_tokens=1), Choosing.OUTSIDE),
        (replace(FILTERED, repetition_penalty=1.1), Choosing.OUTSIDE),
    ],
)
def test_what_a_request_needs(sampling: Sampling, choosing: Choosing) -> None:
    assert choosing_of(sampling) is choosing


def chunk(sampling: Sampling, mask: bool = False) -> Chunk:
    bits = np.zeros((1, 7), dtype=np.int32) if mask else None
    return Chunk([1], 0, [0], 0, True, sampling, mask=bits)


def test_a_step_needs_what_its_neediest_sequence_does_and_remembers_no_other() -> None:
    needs = Needs()
    assert needs.of([chunk(GREEDY), chunk(FILTERED), chunk(RANDOM)]) is Choosing.FILTERED
    assert needs.of([chunk(GREEDY), chunk(GREEDY)]) is Choosing.GREEDY
    assert needs.of([chunk(GREEDY), chunk(GREEDY), chunk(RANDOM)]) is Choosing.RANDOM
    assert needs.of([chunk(GREEDY, mask=True)]) is Choosing.OUTSIDE
    assert needs.of([chunk(GREEDY)]) is Choosing.GREEDY
    assert needs.of([chunk(replace(RANDOM, logprobs=1)), chunk(GREEDY)]) is Choosing.OUTSIDE
