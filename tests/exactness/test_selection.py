"""Selection must not peek: what decides which drafts are verified must not see their values.

Under the standard and block rules, dropping a sampled token because of what it is changes the
proposal's distribution, and with it the output's. Enumerated, so the damage is a number.
"""

from __future__ import annotations

import pytest
import torch

from tests.exactness.enumeration import Cut, enumerate_round
from tests.exactness.rounds import DraftKind, empirical, expected_variation, generate
from tests.toy import Toy, total_variation
from verifier_service.messages import RejectionRule, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

TARGET = Toy.target(vocab_size=3)
DRAFT = TARGET.draft()
SAMPLED_RULES = [RejectionRule.STANDARD, RejectionRule.BLOCK]


def peek(block: tuple[int, ...]) -> int:
    """Verify only up to the first token 2: the cut depends on what was sampled."""
    return block.index(2) if 2 in block else len(block)


def distance(rule: RejectionRule, cut: Cut, deterministic: bool = False) -> float:
    result = enumerate_round(rule, TARGET, DRAFT, 2, cut=cut, deterministic=deterministic)
    return total_variation(result.law, TARGET.law(0, 3))


@pytest.mark.parametrize("rule", SAMPLED_RULES)
def test_dropping_a_sampled_token_by_its_value_changes_the_law(rule: RejectionRule) -> None:
    assert distance(rule, cut=peek) > 0.02


@pytest.mark.parametrize("rule", SAMPLED_RULES)
@pytest.mark.parametrize("length", [0, 1, 2])
def test_a_cut_that_does_not_look_is_exact(rule: RejectionRule, length: int) -> None:
    assert distance(rule, cut=lambda block: length) < 1e-12


@pytest.mark.parametrize("rule", SAMPLED_RULES)
def test_a_cut_by_q_at_the_prefix_is_exact(rule: RejectionRule) -> None:
    """Confidence: stop where the most likely token of q has little mass, seen before sampling.

    The second token's q depends on the first token, which is verified either way: allowed.
    """
    confident = DRAFT.probabilities.amax(dim=1)

    def cut(block: tuple[int, ...]) -> int:
        after_first = int(TARGET.advance(torch.tensor(0), torch.tensor(block[0])))
        return 2 if confident[after_first] > 0.6 else 1

    shares = [cut((v, 0)) for v in range(3)]
    assert len(set(shares)) == 2, "the toy must make this cut both ways"
    assert distance(rule, cut=cut) < 1e-12


@pytest.mark.parametrize("rule", SAMPLED_RULES)
def test_any_cut_of_one_hot_drafts_is_exact(rule: RejectionRule) -> None:
    assert distance(rule, cut=peek, deterministic=True) < 1e-12


def test_a_token_that_is_forbidden_stays_in_the_block_and_is_refused_by_the_rule() -> None:
    """What a grammar refuses has p = 0; leaving it in is exact, its removal is not."""
    masked = TARGET.logits.clone()
    masked[:, 2] = -torch.inf
    target = Toy(3, masked)
    for rule in SAMPLED_RULES:
        kept = enumerate_round(rule, target, DRAFT, 2)
        assert total_variation(kept.law, target.law(0, 3)) < 1e-12
        dropped = enumerate_round(rule, target, DRAFT, 2, cut=peek)
        assert not any(2 in tokens and chance > 0 for tokens, chance in kept.law.items())
        # Where p(2) = 0 a refused 2 is replaced from p - q, not from p.
        assert total_variation(dropped.law, target.law(0, 3)) > 0.02


def test_coupled_outputs_survive_any_selection() -> None:
    """The same peeking cut, through `verify`: the law holds, token by token even."""
    seeds = torch.arange(40_000)

    def cut(drafts: torch.Tensor, number: int) -> torch.Tensor:
        return torch.where(drafts == 2, 0, 1).cumprod(dim=1).sum(dim=1)

    peeked = generate(
        RejectionRule.COUPLED,
        DraftKind.COUPLED,
        TARGET,
        DRAFT,
        Sampling(),
        k=2,
        length=3,
        seeds=seeds,
        lengths=cut,
    )
    plain = generate(
        RejectionRule.COUPLED,
        DraftKind.NONE,
        TARGET,
        DRAFT,
        Sampling(),
        k=0,
        length=3,
        seeds=seeds,
    )
    assert torch.equal(peeked.tokens, plain.tokens)
    law = TARGET.law(0, 3)
    limit = 1.25 * expected_variation(law, len(seeds))
    assert total_variation(empirical(peeked.tokens, 3), law) < limit
