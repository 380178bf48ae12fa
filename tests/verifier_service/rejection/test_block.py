"""The block rule's parts against the paper's formulas, computed densely."""

from __future__ import annotations

import pytest
import torch

from outrider.sparse_q import TOTAL_MASS
from tests.verifier_service.rejection.batches import batch
from verifier_service.messages import RejectionRule, Sampling, SparseRow
from verifier_service.rejection import VerifyInputs, pack_q, verify
from verifier_service.rejection.block import block_thresholds, longest, running_ratios
from verifier_service.rejection.chain import draft_masses, target_probabilities


def example(lengths: list[int]) -> VerifyInputs:
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    drafts = [[1, 2, 3], [0, 4, 1]]
    q = []
    for draft in drafts:
        rows = []
        for token in draft:
            other = (token + 2) % 5
            mass = int(0.37 * TOTAL_MASS)
            rows.append(SparseRow((token, other), (mass, TOTAL_MASS - mass)))
        q.append(rows)
    inputs, _ = batch(logits, [Sampling(seed=1)] * 2, drafts, q=pack_q(drafts, q, 3))
    return VerifyInputs(
        inputs.logits,
        inputs.rows,
        inputs.flags,
        inputs.row_index,
        inputs.draft_ids,
        torch.tensor(lengths),
        inputs.q,
    )


@pytest.mark.parametrize("lengths", [[3, 3], [2, 3], [1, 2], [0, 1]])
def test_thresholds_are_those_of_the_paper(lengths: list[int]) -> None:
    inputs = example(lengths)
    assert inputs.q is not None
    probabilities = inputs.logits.softmax(dim=1)
    p = target_probabilities(probabilities, inputs)
    ratios = running_ratios(p, draft_masses(inputs.q, inputs.draft_ids))
    got = block_thresholds(probabilities, ratios, inputs.q, inputs)
    for b, length in enumerate(lengths):
        r = 1.0
        for i in range(1, length + 1):
            token = int(inputs.draft_ids[b, i - 1])
            row = probabilities[inputs.row_index[b, i - 1]]
            r = min(1.0, r * row[token].item() / (int(0.37 * TOTAL_MASS) / TOTAL_MASS))
            assert ratios[b, i - 1].item() == pytest.approx(r, rel=1e-12)
            if i == length:
                expected = r
            else:
                dense = torch.zeros(5, dtype=torch.float64)
                dense[inputs.q.token_ids[b, i]] = inputs.q.masses[b, i].double() / TOTAL_MASS
                after = probabilities[inputs.row_index[b, i]]
                rest = (r * after - dense).clamp(min=0).sum().item()
                expected = rest / (rest + 1 - r)
            assert got[b, i - 1].item() == pytest.approx(expected, rel=1e-9)


def test_longest_goes_on_behind_a_failed_test() -> None:
    passed = torch.tensor([[False, True, False], [True, False, False], [False] * 3, [True] * 3])
    assert longest(passed, torch.tensor([3, 3, 3, 2])).tolist() == [2, 1, 0, 2]


def test_a_draft_passes_where_token_by_token_it_would_not() -> None:
    """p/q of the first token below 1, of the second far above: the block makes up for it.

    r_1 = .5 / .8; r_2 = min(1, r_1 .9 / .45) = 1, so the whole draft passes, always.
    """
    count = 2000
    logits = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.5, 0.5]]).log().repeat(count, 1)
    first = int(0.8 * TOTAL_MASS)
    second = int(0.45 * TOTAL_MASS)
    rows = [
        SparseRow((0, 1), (first, TOTAL_MASS - first)),
        SparseRow((1, 0), (second, TOTAL_MASS - second)),
    ]
    drafts = [[0, 1]] * count
    q = pack_q(drafts, [rows] * count, 2)
    inputs, noise = batch(logits, [Sampling(seed=i) for i in range(count)], drafts, q=q)
    assert (verify(RejectionRule.BLOCK, inputs, noise).accepted == 2).all()
    token = verify(RejectionRule.STANDARD, inputs, noise).accepted
    assert 0.3 < (token == 0).double().mean().item() < 0.45


def test_without_q_it_is_the_standard_rule() -> None:
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(400, 6, generator=generator)
    drafts = torch.randint(0, 6, (100, 3), generator=generator).tolist()
    inputs, noise = batch(logits, [Sampling(seed=i) for i in range(100)], drafts)
    block = verify(RejectionRule.BLOCK, inputs, noise)
    standard = verify(RejectionRule.STANDARD, inputs, noise)
    assert torch.equal(block.tokens, standard.tokens)
