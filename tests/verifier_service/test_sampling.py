"""Processing and choosing: what each request asked for, row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from verifier_service.messages import Sampling
from verifier_service.noise import VocabularyNoise
from verifier_service.sampling import (
    RowSampling,
    SamplingFlags,
    argmax,
    choose,
    choose_with_gap,
    is_greedy,
    pack_rows,
    process_logits,
)

V = 50
LOGITS = torch.randn(6, V, generator=torch.Generator().manual_seed(4)) * 3


def batch(*samplings: Sampling, position: int = 10) -> tuple[RowSampling, SamplingFlags]:
    return pack_rows([(s, position, 1) for s in samplings]), SamplingFlags.of(samplings)


def sample(logits: Tensor, *samplings: Sampling, position: int = 10) -> list[int]:
    rows, flags = batch(*samplings, position=position)
    return choose(process_logits(logits, rows, flags), rows, flags, VocabularyNoise(V)).tolist()


def many(logits: Tensor, sampling: Sampling, count: int) -> Tensor:
    """Choices of `count` seeds from one row of logits."""
    one = pack_rows([(sampling, 10, 1)])
    flags = SamplingFlags.of([sampling])
    processed = process_logits(logits, one, flags).expand(count, -1)
    rows = replace(one.select(torch.zeros(count, dtype=torch.int64)), seed=torch.arange(count))
    return choose(processed, rows, flags, VocabularyNoise(logits.shape[-1]))


def test_temperature_divides() -> None:
    rows, flags = batch(*[Sampling(temperature=t) for t in (0.5, 1.0, 2.0, 0.0, 0.7, 1.3)])
    got = process_logits(LOGITS, rows, flags)
    for row, t in enumerate((0.5, 1.0, 2.0, 1.0, 0.7, 1.3)):
        assert torch.allclose(got[row], LOGITS[row] / t)


def test_input_is_not_written_to() -> None:
    before = LOGITS.clone()
    for s in (Sampling(temperature=0.5, top_k=3, top_p=0.5), Sampling(), Sampling(temperature=0)):
        rows, flags = batch(*[s] * 6)
        choose(process_logits(LOGITS, rows, flags), rows, flags, VocabularyNoise(V))
    assert torch.equal(LOGITS, before)


def test_order_is_temperature_then_top_k_then_top_p() -> None:
    """Of the two likeliest, the first holds .65 at temperature 2 and .78 at 1; p is .66."""
    logits = torch.tensor([[0.7, 0.2, 0.1]]).log()
    rows, flags = batch(Sampling(temperature=2.0, top_k=2, top_p=0.66))
    assert torch.isfinite(process_logits(logits, rows, flags)).tolist() == [[True, True, False]]
    rows, flags = batch(Sampling(temperature=1.0, top_k=2, top_p=0.66))
    assert torch.isfinite(process_logits(logits, rows, flags)).tolist() == [[True, False, False]]


def test_greedy_rows_are_untouched_in_a_mixed_batch() -> None:
    samplings = [
        Sampling(temperature=0, top_k=2, top_p=0.1),
        Sampling(temperature=0.3, top_k=2),
    ] * 3
    rows, flags = batch(*samplings)
    got = process_logits(LOGITS, rows, flags)
    assert torch.equal(got[::2], LOGITS[::2])
    assert torch.isfinite(got[1::2]).sum(dim=1).tolist() == [2, 2, 2]


def test_greedy_takes_the_lowest_of_tied_tokens() -> None:
    logits = torch.zeros(1, V)
    logits[0, [7, 30]] = 1.0
    assert sample(logits, Sampling(temperature=0)) == [7]
    assert argmax(logits).tolist() == argmax(logits.bfloat16()).tolist() == [7]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_any_float_becomes_float32(dtype: torch.dtype) -> None:
    for s in (Sampling(temperature=0), Sampling(temperature=0.7, top_k=5)):
        rows, flags = batch(*[s] * 6)
        assert process_logits(LOGITS.to(dtype), rows, flags).dtype == torch.float32


def test_choice_depends_on_seed_and_position_only() -> None:
    """Not on the neighbours in the batch, their number or their kind."""
    mine = Sampling(temperature=0.9, top_k=20, seed=123)
    alone = sample(LOGITS[:1], mine)
    others = [Sampling(temperature=0), Sampling(seed=9), Sampling(top_p=0.3), Sampling(top_k=1)]
    for place in range(5):
        samplings = [*others[:place], mine, *others[place:]]
        logits = torch.cat((LOGITS[1 : place + 1], LOGITS[:1], LOGITS[place + 1 : 5]))
        assert sample(logits, *samplings)[place] == alone[0]


def test_seed_and_position_change_the_choice() -> None:
    flat = torch.zeros(1, V)
    assert len({sample(flat, Sampling(seed=s))[0] for s in range(60)}) > 20
    assert len({sample(flat, Sampling(seed=1), position=p)[0] for p in range(60)}) > 20


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(temperature=2.0),
        Sampling(top_k=3),
        Sampling(top_p=0.6),
        Sampling(temperature=1.5, top_k=4, top_p=0.8),
    ],
)
def test_choices_follow_the_processed_distribution(sampling: Sampling) -> None:
    logits = torch.tensor([[1.0, 0.2, -0.5, 0.9, -2.0, 0.0]])
    rows, flags = batch(sampling)
    p = process_logits(logits, rows, flags).double().softmax(dim=-1)[0]
    counts = torch.bincount(many(logits, sampling, 100_000), minlength=6).double()
    assert counts[p == 0].sum() == 0
    expected = p[p > 0] * 100_000
    statistic = ((counts[p > 0] - expected) ** 2 / expected).sum().item()
    assert statistic < 20.6  # 0.1 % point of chi-square with 5 degrees of freedom


def test_top_k_one_is_greedy() -> None:
    """Even where the two best are tied, which top-k alone would keep both of."""
    assert is_greedy(Sampling(top_k=1))
    logits = torch.zeros(1, V)
    for seed in range(20):
        assert sample(logits, Sampling(top_k=1, seed=seed)) == [0]


def test_tiny_temperature_is_finite_and_takes_the_best() -> None:
    best = LOGITS.argmax(dim=1).tolist()
    for t in (1e-5, 2e-5, 1e-30, 1e-45):
        rows, flags = batch(*[Sampling(temperature=t, seed=i) for i in range(6)])
        processed = process_logits(LOGITS * 1e3, rows, flags)
        assert torch.isfinite(processed).all()
        assert sample(LOGITS * 1e3, *[Sampling(temperature=t, seed=i) for i in range(6)]) == best


def test_tiny_top_p_takes_the_best() -> None:
    best = LOGITS.argmax(dim=1).tolist()
    assert sample(LOGITS, *[Sampling(top_p=1e-9, seed=i) for i in range(6)]) == best


def test_top_k_beyond_the_vocabulary_limits_nothing() -> None:
    for k in (V, V + 1, 10**9):
        samplings = [Sampling(top_k=k, seed=i) for i in range(6)]
        assert sample(LOGITS, *samplings) == sample(LOGITS, *[Sampling(seed=i) for i in range(6)])


def test_masked_tokens_are_never_chosen() -> None:
    logits = torch.full((1, V), -torch.inf)
    logits[0, [4, 40]] = torch.tensor([-80.0, -81.0])
    assert set(many(logits, Sampling(temperature=2.0), 3000).tolist()) == {4, 40}
    assert sample(logits, Sampling(temperature=0)) == [4]


@pytest.mark.parametrize(
    ("sampling", "flags"),
    [
        (
            Sampling(temperature=0, top_k=3, top_p=0.5),
            SamplingFlags(True, False, False, False, False, False),
        ),
        (Sampling(), SamplingFlags(False, True, False, False, False, False)),
        (Sampling(temperature=0.5), SamplingFlags(False, True, True, False, False, False)),
        (Sampling(top_k=5), SamplingFlags(False, True, False, True, False, False)),
        (Sampling(top_p=0.5), SamplingFlags(False, True, False, False, True, False)),
        (Sampling(min_p=0.1), SamplingFlags(False, True, False, False, False, True)),
        (Sampling(temperature=0, min_p=0.1), SamplingFlags(True, *[False] * 5)),
        (Sampling(top_k=1, top_p=0.5), SamplingFlags(True, False, False, False, False, False)),
    ],
)
def test_flags_say_what_a_batch_contains(sampling: Sampling, flags: SamplingFlags) -> None:
    assert SamplingFlags.of([sampling]) == flags


def test_superfluous_flags_change_nothing() -> None:
    samplings = [Sampling(temperature=0), Sampling(seed=1), Sampling(seed=2)] * 2
    rows, flags = batch(*samplings)
    everything = SamplingFlags()
    noise = VocabularyNoise(V)
    lean = choose(process_logits(LOGITS, rows, flags), rows, flags, noise)
    full = choose(process_logits(LOGITS, rows, everything), rows, everything, noise)
    assert torch.equal(lean, full)


def test_packing_counts_positions_and_pads_with_greedy_rows() -> None:
    entries = [
        (Sampling(seed=-3, temperature=0.5, top_k=4, top_p=0.9), 7, 3),
        (Sampling(temperature=0, seed=8), 2, 1),
    ]
    rows = pack_rows(entries, num_rows=6)
    assert rows.position.tolist() == [7, 8, 9, 2, 0, 0]
    assert rows.seed.tolist()[:3] == [-3] * 3
    assert rows.top_k.tolist() == [4, 4, 4, 0, 0, 0]
    assert rows.temperature.tolist() == [0.5, 0.5, 0.5, 0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="num_rows 3: the batch has 4 rows"):
        pack_rows(entries, num_rows=3)


def test_gap_is_between_the_two_best_perturbed_scores() -> None:
    rows, flags = batch(*[Sampling(seed=i) for i in range(5)], Sampling(temperature=0))
    processed = process_logits(LOGITS, rows, flags)
    noise = VocabularyNoise(V)
    chosen, gap = choose_with_gap(processed, rows, flags, noise)
    assert torch.equal(chosen, choose(processed, rows, flags, noise))
    assert (gap > 0).all()
    ordered = LOGITS[5].sort(descending=True).values
    assert gap[5].item() == pytest.approx((ordered[0] - ordered[1]).item(), rel=1e-5)
    # Lowering the winner by a little more than the gap gives the choice to another token.
    for factor, same in ((0.99, True), (1.01, False)):
        nudged = processed.scatter_add(
            1, chosen.unsqueeze(1), -(gap * factor).unsqueeze(1).to(processed.dtype)
        )
        assert torch.equal(choose(nudged, rows, flags, noise), chosen) is same


def test_gap_of_a_lone_token_is_infinite() -> None:
    logits = torch.full((1, V), -torch.inf)
    logits[0, 3] = 0.0
    rows, flags = batch(Sampling())
    chosen, gap = choose_with_gap(logits, rows, flags, VocabularyNoise(V))
    assert chosen.tolist() == [3]
    assert math.isinf(gap.item())
