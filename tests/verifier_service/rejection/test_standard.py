"""The standard rule's parts against closed forms."""

from __future__ import annotations

import pytest
import torch

from outrider.sparse_q import TOTAL_MASS
from tests.verifier_service.rejection.batches import batch
from verifier_service.messages import RejectionRule, Sampling, SparseRow
from verifier_service.rejection import SparseQ, pack_q, verify
from verifier_service.rejection.chain import acceptance_uniforms, leading, one_hot, residual_weights
from verifier_service.rejection.standard import token_thresholds

HALF = TOTAL_MASS // 2


def test_threshold_is_the_capped_ratio() -> None:
    p = torch.tensor([[0.2, 0.5, 0.9, 0.0, 0.3]], dtype=torch.float64)
    q = torch.tensor([[0.4, 0.5, 0.3, 0.5, 0.0]], dtype=torch.float64)
    assert token_thresholds(p, q)[0].tolist() == pytest.approx([0.5, 1.0, 1.0, 0.0, 0.0])


def test_smallest_mass_divides_without_overflow() -> None:
    q = torch.tensor([[1 / TOTAL_MASS]], dtype=torch.float64)
    p = torch.tensor([[1 / TOTAL_MASS / 4]], dtype=torch.float64)
    assert token_thresholds(p, q).item() == pytest.approx(0.25)


def test_leading_stops_at_the_first_refusal() -> None:
    passed = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4, [True] * 4])
    assert leading(passed, torch.tensor([4, 4, 4, 2])).tolist() == [2, 4, 0, 2]


def test_residual_is_the_positive_part_where_refused_and_p_after_full_acceptance() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]] * 2, dtype=torch.float64)
    q = SparseQ(torch.tensor([[[1, 0]], [[1, 0]]]), torch.tensor([[[HALF, HALF]], [[HALF, HALF]]]))
    weights = residual_weights(p, torch.ones(2), q, torch.tensor([0, 1]), torch.tensor([1, 1]))
    assert weights.tolist() == [pytest.approx([0.0, 0.0, 0.2]), pytest.approx([0.5, 0.3, 0.2])]


def test_one_hot_residual_drops_the_draft_alone() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    q = one_hot(torch.tensor([[1]]))
    weights = residual_weights(p, torch.ones(1), q, torch.tensor([0]), torch.tensor([1]))
    assert weights[0].tolist() == pytest.approx([0.5, 0.0, 0.2])


def test_padding_of_q_takes_nothing_from_token_zero() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    q = pack_q([[2]], [[SparseRow((2,), (TOTAL_MASS,))]], 1, entries=6)
    assert q is not None
    weights = residual_weights(p, torch.ones(1), q, torch.tensor([0]), torch.tensor([1]))
    assert weights[0].tolist() == pytest.approx([0.5, 0.3, 0.0])


def test_equal_p_and_q_leave_a_residual_that_can_be_drawn() -> None:
    """A refusal cannot happen then, but rounding must not leave a row without weight."""
    p = torch.tensor([[0.5, 0.5]])
    q = SparseQ(torch.tensor([[[0, 1]]]), torch.tensor([[[HALF, HALF]]]))
    weights = residual_weights(p, torch.ones(1), q, torch.tensor([0]), torch.tensor([1]))
    assert weights.tolist() == [[0.5, 0.5]]


def test_acceptance_frequency_and_residual_frequencies() -> None:
    """Through `verify`: drafts of token 0 with q(0) = .8 where p(0) = .4 pass half of the time."""
    count = 40_000
    p = torch.tensor([0.4, 0.25, 0.35])
    row = SparseRow((0, 1), (int(0.8 * TOTAL_MASS), TOTAL_MASS - int(0.8 * TOTAL_MASS)))
    drafts = [[0]] * count
    q = pack_q(drafts[:1], [[row]], 1)
    assert q is not None
    q = SparseQ(q.token_ids.expand(count, -1, -1), q.masses.expand(count, -1, -1))
    samplings = [Sampling(seed=i) for i in range(count)]
    inputs, noise = batch(p.log().expand(2 * count, -1), samplings, drafts, q=q)
    result = verify(RejectionRule.STANDARD, inputs, noise)
    passed = result.accepted == 1
    assert abs(passed.double().mean().item() - 0.5) < 4 * 0.5 / count**0.5
    refused = torch.bincount(result.tokens[~passed, 0], minlength=3) / int((~passed).sum())
    # (p - q)+ = (0, .05, .35)
    assert refused.tolist() == pytest.approx([0.0, 0.125, 0.875], abs=0.01)
    bonus = torch.bincount(result.tokens[passed, 1], minlength=3) / int(passed.sum())
    assert bonus.tolist() == pytest.approx([0.4, 0.25, 0.35], abs=0.015)


def test_uniforms_are_new_in_every_round() -> None:
    """A later round that starts inside an earlier block must not see its numbers again."""
    logits = torch.zeros(5, 8)
    rounds = []
    for first in (20, 21, 22):
        inputs, _ = batch(logits, [Sampling(seed=3)], [[0] * 4], first=first)
        rounds.append(acceptance_uniforms(inputs)[0].tolist())
    values = [u for numbers in rounds for u in numbers]
    assert len(set(values)) == 12
    assert all(0 < u < 1 for u in values)
