"""Min-p, top-k and top-p against their definitions, by both implementations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from verifier_service.filters import filter_logits, thresholds_by_sort

Filter = Callable[..., Tensor]


def on_cpu(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    return filter_logits(logits, top_k, top_p, torch.zeros(len(logits)) if min_p is None else min_p)


def by_sort(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    """What devices other than the CPU do."""
    least = torch.zeros(len(logits)) if min_p is None else min_p
    threshold = thresholds_by_sort(logits, top_k, top_p, least).unsqueeze(-1)
    return logits.masked_fill(logits < threshold, -torch.inf)


def by_definition(logits: Tensor, k: int, p: float, least: float = 0.0) -> set[int]:
    """Kept ids of one row, in float64, token by token."""
    row = logits.double().tolist()
    best = max(row)
    kept = {v for v in range(len(row)) if math.exp(row[v] - best) >= least}
    if 0 < k < len(kept):
        kth = sorted((row[v] for v in kept), reverse=True)[k - 1]
        kept = {v for v in kept if row[v] >= kth}
    if p < 1.0:
        top = max(row)
        mass = {v: torch.tensor(row[v] - top, dtype=torch.float64).exp().item() for v in kept}
        total = sum(mass.values())
        kept = {v for v in kept if sum(m for w, m in mass.items() if row[w] > row[v]) / total < p}
    return kept


def kept(filtered: Tensor) -> list[set[int]]:
    return [set(torch.isfinite(row).nonzero().flatten().tolist()) for row in filtered]


@pytest.fixture(params=[on_cpu, by_sort], ids=["cpu", "sort"])
def apply(request: pytest.FixtureRequest) -> Filter:
    chosen: Filter = request.param
    return chosen


@pytest.mark.parametrize("k", [0, 1, 2, 7, 99, 100, 101, 10_000])
@pytest.mark.parametrize("p", [1.0, 0.95, 0.5, 0.1, 1e-6])
@pytest.mark.parametrize("scale", [0.1, 2.0, 20.0])
def test_keeps_what_the_definition_keeps(apply: Filter, k: int, p: float, scale: float) -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(k)) * scale
    got = apply(logits, torch.full((4,), k), torch.full((4,), p))
    assert kept(got) == [by_definition(row, k, p) for row in logits]
    finite = torch.isfinite(got)
    assert torch.equal(got[finite], logits[finite])


@pytest.mark.parametrize("least", [1e-6, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("k", [0, 3, 50])
@pytest.mark.parametrize("p", [1.0, 0.9, 0.3])
def test_min_p_keeps_what_the_definition_keeps(
    apply: Filter, least: float, k: int, p: float
) -> None:
    for scale in (0.2, 2.0, 10.0):
        logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(k)) * scale
        got = apply(logits, torch.full((4,), k), torch.full((4,), p), torch.full((4,), least))
        assert kept(got) == [by_definition(row, k, p, least) for row in logits]
        finite = torch.isfinite(got)
        assert torch.equal(got[finite], logits[finite])


def test_min_p_of_1_keeps_the_most_likely_and_its_ties(apply: Filter) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    got = apply(logits, torch.tensor([0]), torch.ones(1), torch.ones(1))
    assert kept(got) == [{1, 2}]


def test_top_p_is_of_what_min_p_left(apply: Filter) -> None:
    """Of what is left, the best token holds .57 and not .4: enough for p = .5."""
    logits = torch.tensor([[0.4, 0.3, 0.16, 0.14]]).log()
    none, p = torch.tensor([0]), torch.tensor([0.5])
    assert kept(apply(logits, none, p, torch.zeros(1))) == [{0, 1}]
    assert kept(apply(logits, none, p, torch.tensor([0.6]))) == [{0}]


def test_each_row_has_its_own_min_p(apply: Filter) -> None:
    logits = torch.tensor([[1.0, 0.5, 0.25, 0.1]] * 3).log()
    got = apply(logits, torch.tensor([0] * 3), torch.ones(3), torch.tensor([0.0, 0.3, 0.6]))
    assert [len(k) for k in kept(got)] == [4, 2, 1]


def test_ties_stay_together(apply: Filter) -> None:
    """Which of equal tokens stays must not depend on a sort's order, so all do."""
    logits = torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]])
    one = torch.ones(1)
    assert kept(apply(logits, torch.tensor([3]), one)) == [{0, 1, 2, 3, 4}]
    assert kept(apply(logits, torch.tensor([2]), one)) == [{1, 3}]
    assert kept(apply(torch.zeros(1, 6), torch.tensor([0]), one * 0.3)) == [set(range(6))]


def test_top_p_reaches_past_the_few_likely_tokens(apply: Filter) -> None:
    """A flat tail below the first floor of candidates still counts."""
    logits = torch.full((1, 20_000), -9.0)
    logits[0, :3] = torch.tensor([1.0, 0.5, 0.0])
    got = apply(logits, torch.tensor([0]), torch.tensor([0.7]))
    assert kept(got)[0] == set(range(20_000))
    got = apply(logits, torch.tensor([0]), torch.tensor([0.5]))
    assert kept(got)[0] == {0, 1}


def test_top_p_is_of_what_top_k_left(apply: Filter) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    alone = apply(logits, torch.tensor([0]), torch.tensor([0.5]))
    after = apply(logits, torch.tensor([2]), torch.tensor([0.5]))
    assert kept(alone) == [{0, 1}]
    assert kept(after) == [{0}]


def test_rows_are_cut_each_by_its_own_limits(apply: Filter) -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 4)
    got = apply(logits, torch.tensor([0, 2, 0, 1]), torch.tensor([1.0, 1.0, 0.7, 1.0]))
    assert [len(k) for k in kept(got)] == [4, 2, 2, 1]


def test_masked_tokens_stay_masked(apply: Filter) -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    got = apply(logits, torch.tensor([3]), torch.tensor([0.999]))
    assert kept(got) == [{0, 2}]


def test_large_vocabulary_top_k_is_exact() -> None:
    """Enough groups that the bound by group maxima is used, with all winners in one group too."""
    logits = torch.randn(3, 49_152, generator=torch.Generator().manual_seed(1))
    logits[1, :64] += 50.0
    k = torch.tensor([50, 50, 3000])
    got = on_cpu(logits, k, torch.ones(3))
    expected = by_sort(logits, k, torch.ones(3))
    assert torch.equal(got, expected)


def test_both_ways_agree_on_a_large_vocabulary() -> None:
    logits = torch.randn(6, 49_152, generator=torch.Generator().manual_seed(2))
    logits *= torch.tensor([0.5, 1.0, 2.0, 3.0, 5.0, 8.0]).unsqueeze(1)
    top_k = torch.tensor([0, 40, 0, 1000, 0, 5])
    top_p = torch.tensor([0.9, 0.9, 0.95, 0.99, 0.5, 0.999])
    for a, b in zip(
        kept(on_cpu(logits, top_k, top_p)), kept(by_sort(logits, top_k, top_p)), strict=True
    ):
        # A token whose mass above is p to seven digits may fall either way.
        assert len(a ^ b) <= max(1, len(a) // 2000)
