"""The output law of the standard and block rules, enumerated: equal to the target's to 1e-12."""

from __future__ import annotations

import pytest

from tests.exactness.enumeration import enumerate_round, quantised
from tests.toy import Toy, total_variation
from verifier_service.messages import RejectionRule, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

RULES = (RejectionRule.STANDARD, RejectionRule.BLOCK)
TARGET = Toy.target(vocab_size=3)
DRAFT = TARGET.draft(sigma=1.0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_sampled_drafts_leave_the_target_law(rule: RejectionRule, k: int) -> None:
    for context in range(0, 9, 4):
        result = enumerate_round(rule, TARGET, DRAFT, k, context=context)
        assert total_variation(result.law, TARGET.law(context, k + 1)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("entries", [1, 2])
def test_truncated_q_leaves_the_target_law(rule: RejectionRule, entries: int) -> None:
    result = enumerate_round(rule, TARGET, DRAFT, 3, entries=entries)
    assert total_variation(result.law, TARGET.law(0, 4)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_one_hot_drafts_leave_the_target_law(rule: RejectionRule) -> None:
    result = enumerate_round(rule, TARGET, DRAFT, 3, deterministic=True)
    assert total_variation(result.law, TARGET.law(0, 4)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(top_k=2),
        Sampling(top_p=0.7),
        Sampling(temperature=1.4, top_k=3, top_p=0.9),
    ],
    ids=["t0.7", "k2", "p0.7", "t1.4k3p0.9"],
)
def test_filtered_targets_keep_their_law(rule: RejectionRule, sampling: Sampling) -> None:
    """The draft model is filtered otherwise than the target, or not at all: still exact."""
    target = Toy.target(vocab_size=4).processed(sampling)
    draft = Toy.target(vocab_size=4).draft()
    result = enumerate_round(rule, target, draft, 2)
    assert total_variation(result.law, target.law(0, 3)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_perfect_draft_is_always_accepted(rule: RejectionRule) -> None:
    result = enumerate_round(rule, TARGET, TARGET, 3)
    assert result.acceptance_length == pytest.approx(4.0, abs=1e-6)
    assert total_variation(result.law, TARGET.law(0, 4)) < 1e-9


@pytest.mark.parametrize("k", [2, 3])
def test_block_rule_accepts_more(k: int) -> None:
    token = enumerate_round(RejectionRule.STANDARD, TARGET, DRAFT, k).acceptance_length
    block = enumerate_round(RejectionRule.BLOCK, TARGET, DRAFT, k).acceptance_length
    assert block > token + 0.01


def test_block_rule_equals_standard_for_one_token() -> None:
    token = enumerate_round(RejectionRule.STANDARD, TARGET, DRAFT, 1).acceptance_length
    block = enumerate_round(RejectionRule.BLOCK, TARGET, DRAFT, 1).acceptance_length
    assert block == pytest.approx(token, abs=1e-12)


def test_block_rule_has_the_standard_law_for_one_hot_drafts() -> None:
    """Which is why the rule may treat blocks without q as one-hot in a mixed batch."""
    for k in (1, 2, 3):
        results = [enumerate_round(r, TARGET, DRAFT, k, deterministic=True) for r in RULES]
        assert results[0].acceptance_length == pytest.approx(
            results[1].acceptance_length, abs=1e-12
        )


def test_one_token_acceptance_is_one_minus_total_variation() -> None:
    result = enumerate_round(RejectionRule.STANDARD, TARGET, DRAFT, 1)
    p, q = TARGET.law(0, 1), DRAFT.law(0, 1)
    assert result.acceptance_length == pytest.approx(2 - total_variation(p, q), abs=1e-8)


@pytest.mark.parametrize("rule", RULES)
def test_the_enumeration_sees_a_wrong_q(rule: RejectionRule) -> None:
    """A check of the check: a claimed q that was not sampled from shows."""
    other = quantised(TARGET.draft(seed=5, sigma=2.0), 3)
    result = enumerate_round(rule, TARGET, DRAFT, 2, claimed=other)
    assert total_variation(result.law, TARGET.law(0, 3)) > 0.01


@pytest.mark.parametrize("rule", RULES)
def test_shortened_blocks_leave_the_target_law(rule: RejectionRule) -> None:
    """A cut that does not look at the sampled tokens: one token of three is verified."""
    result = enumerate_round(rule, TARGET, DRAFT, 3, cut=lambda block: 1)
    assert total_variation(result.law, TARGET.law(0, 4)) < 1e-12
