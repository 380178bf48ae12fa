"""Sampled outputs against the toy's exact law: every rule, draft kind, temperature and filter.

Unlike the enumeration this goes through `verify` itself, over several rounds, so it also sees
noise that is used twice. Seeds are fixed: a failure is a failure.
"""

from __future__ import annotations

import pytest
import torch

from tests.exactness.rounds import DraftKind, empirical, expected_variation, generate
from tests.toy import Toy, total_variation
from verifier_service.messages import RejectionRule, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDS = torch.arange(40_000) * 977 - 20_000_000
TARGET = Toy.target()
SAMPLINGS = {
    "t1": Sampling(),
    "t0.7": Sampling(temperature=0.7),
    "t1.3k3": Sampling(temperature=1.3, top_k=3),
    "p0.8": Sampling(top_p=0.8),
    "t0.7k3p0.9": Sampling(temperature=0.7, top_k=3, top_p=0.9),
}
KINDS = (DraftKind.ONE_HOT, DraftKind.COUPLED, DraftKind.SPARSE)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("rule", RejectionRule, ids=lambda rule: rule.value)
def test_outputs_have_the_targets_law(
    rule: RejectionRule, kind: DraftKind, sampling: Sampling
) -> None:
    """Four tokens by rounds of two drafts; the draft model is filtered as the target is."""
    draft = TARGET.draft().processed(sampling)
    got = generate(rule, kind, TARGET, draft, sampling, k=2, length=4, seeds=SEEDS)
    law = TARGET.processed(sampling).law(0, 4)
    distance = total_variation(empirical(got.tokens, 4), law)
    assert distance < 1.25 * expected_variation(law, len(SEEDS))
    assert got.accepted > 0.2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("rule", RejectionRule, ids=lambda rule: rule.value)
def test_greedy_outputs_are_the_targets_argmaxes(rule: RejectionRule, kind: DraftKind) -> None:
    greedy = Sampling(temperature=0)
    draft = TARGET.draft()
    got = generate(rule, kind, TARGET, draft, greedy, k=3, length=12, seeds=torch.arange(40))
    ids: list[int] = []
    for _ in range(12):
        ids.append(int(TARGET.logits_after(ids).argmax()))
    assert got.tokens.tolist() == [ids] * 40


@pytest.mark.parametrize("rule", RejectionRule, ids=lambda rule: rule.value)
def test_plain_decoding_has_the_targets_law(rule: RejectionRule) -> None:
    got = generate(rule, DraftKind.NONE, TARGET, TARGET, Sampling(), k=0, length=4, seeds=SEEDS)
    law = TARGET.law(0, 4)
    distance = total_variation(empirical(got.tokens, 4), law)
    assert distance < 1.25 * expected_variation(law, len(SEEDS))


@pytest.mark.parametrize("rule", [RejectionRule.STANDARD, RejectionRule.BLOCK])
def test_truncated_q_has_the_targets_law(rule: RejectionRule) -> None:
    got = generate(
        rule,
        DraftKind.SPARSE,
        TARGET,
        TARGET.draft(),
        Sampling(),
        k=3,
        length=4,
        seeds=SEEDS,
        entries=2,
    )
    law = TARGET.law(0, 4)
    distance = total_variation(empirical(got.tokens, 4), law)
    assert distance < 1.25 * expected_variation(law, len(SEEDS))


def test_block_rule_accepts_more_than_standard() -> None:
    accepted = [
        generate(
            rule,
            DraftKind.SPARSE,
            TARGET,
            TARGET.draft(),
            Sampling(),
            k=4,
            length=5,
            seeds=SEEDS,
        ).accepted
        for rule in (RejectionRule.STANDARD, RejectionRule.BLOCK)
    ]
    assert accepted[1] > accepted[0] + 0.02


def test_coupled_acceptance_is_the_closed_form() -> None:
    """Agreement of shared noise: sum over x of 1 / sum over y of max(p_y/p_x, q_y/q_x)."""
    draft = TARGET.draft()
    got = generate(
        RejectionRule.COUPLED,
        DraftKind.COUPLED,
        TARGET,
        draft,
        Sampling(),
        k=1,
        length=1,
        seeds=SEEDS,
    )
    p, q = TARGET.probabilities[0], draft.probabilities[0]
    ratios = torch.maximum(p.unsqueeze(0) / p.unsqueeze(1), q.unsqueeze(0) / q.unsqueeze(1))
    expected = (1 / ratios.sum(dim=1)).sum().item()
    assert abs(got.accepted - expected) < 4 * (expected * (1 - expected) / len(SEEDS)) ** 0.5
    overlap = 1 - total_variation(TARGET.law(0, 1), draft.law(0, 1))
    assert overlap / (2 - overlap) < expected < overlap
