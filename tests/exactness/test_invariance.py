"""Under the coupled rule the tokens are the same whatever the drafts are: an equality."""

from __future__ import annotations

import pytest
import torch

from tests.exactness.rounds import DraftKind, generate
from tests.toy import Toy
from verifier_service.messages import RejectionRule, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

TARGET = Toy.target(vocab_size=6)
SEEDS = torch.arange(300) * 31 - 4000
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "t0.7": Sampling(temperature=0.7),
    "t1": Sampling(),
    "t1k3p0.9": Sampling(top_k=3, top_p=0.9),
}


def tokens(kind: DraftKind, sampling: Sampling, k: int) -> torch.Tensor:
    return generate(
        RejectionRule.COUPLED,
        kind,
        TARGET,
        TARGET.draft(),
        sampling,
        k=k,
        length=24,
        seeds=SEEDS,
    ).tokens


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_any_draft_and_any_k_give_plain_decodings_tokens(sampling: Sampling) -> None:
    plain = tokens(DraftKind.NONE, sampling, 0)
    for kind in (DraftKind.ONE_HOT, DraftKind.COUPLED, DraftKind.SPARSE, DraftKind.RANDOM):
        for k in (1, 2, 5, 8):
            assert torch.equal(tokens(kind, sampling, k), plain)


def test_any_cut_gives_plain_decodings_tokens() -> None:
    """Draft lengths that depend on the drafted tokens, on the round and on the sequence."""
    plain = tokens(DraftKind.NONE, Sampling(), 0)
    got = generate(
        RejectionRule.COUPLED,
        DraftKind.COUPLED,
        TARGET,
        TARGET.draft(),
        Sampling(),
        k=4,
        length=24,
        seeds=SEEDS,
        lengths=lambda drafts, number: (drafts.sum(dim=1) + number) % 5,
    ).tokens
    assert torch.equal(got, plain)


def test_other_rules_depend_on_the_draft() -> None:
    """Which is why only the coupled rule promises tokens, and the others a distribution."""
    for rule in (RejectionRule.STANDARD, RejectionRule.BLOCK):
        outputs = [
            generate(
                rule,
                kind,
                TARGET,
                TARGET.draft(),
                Sampling(),
                k=3,
                length=24,
                seeds=SEEDS,
            ).tokens
            for kind in (DraftKind.SPARSE, DraftKind.ONE_HOT)
        ]
        assert not torch.equal(*outputs)
