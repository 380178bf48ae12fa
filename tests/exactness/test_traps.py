"""The twelve ways in which speculative decoders were found to be inexact, one test each.

Traps that live in other parts (7, 10, 12 and half of 9) are tested at the nearest property that
sampling and verification can have; the parts' own tests cover the rest.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from outrider.acceptance import Round
from outrider.coupling import gumbel
from outrider.sparse_q import TOTAL_MASS, quantise, sample_rows
from tests.exactness.enumeration import enumerate_round, quantised
from tests.exactness.rounds import DraftKind, empirical, expected_variation, generate
from tests.toy import Toy, total_variation
from verifier_service.messages import RejectionRule, Sampling
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection import SparseQ, VerifyInputs, pack_q, verify
from verifier_service.rejection.chain import draft_masses, one_hot, residual_weights
from verifier_service.sampling import (
    RowSampling,
    SamplingFlags,
    choose,
    pack_rows,
    process_logits,
)

pytestmark = pytest.mark.usefixtures("one_thread")

TARGET = Toy.target()
DRAFT = TARGET.draft()
SEEDS = torch.arange(40_000)
SAMPLED_RULES = (RejectionRule.STANDARD, RejectionRule.BLOCK)


def test_trap_01_residual_subtracts_all_of_q_when_the_draft_was_sampled() -> None:
    """Subtracting the drafted token's mass only would leave weights (.1, .1, .5)."""
    p = torch.tensor([[0.3, 0.2, 0.5]], dtype=torch.float64)
    masses = torch.tensor([[[TOTAL_MASS // 2, TOTAL_MASS // 4, TOTAL_MASS // 4]]])
    q = SparseQ(torch.tensor([[[0, 1, 2]]]), masses)
    weights = residual_weights(p, torch.ones(1), q, torch.tensor([0]), torch.tensor([1]))
    assert weights[0].tolist() == pytest.approx([0.0, 0.0, 0.25])


@pytest.mark.parametrize("rule", SAMPLED_RULES)
def test_trap_02_temperature_and_filters_on_one_side_only(rule: RejectionRule) -> None:
    """A draft model at other settings costs acceptance, never exactness: p is the processed one."""
    sampling = Sampling(temperature=0.7, top_k=3, top_p=0.9)
    got = generate(rule, DraftKind.SPARSE, TARGET, DRAFT, sampling, k=2, length=3, seeds=SEEDS)
    law = TARGET.processed(sampling).law(0, 3)
    limit = 1.25 * expected_variation(law, len(SEEDS))
    found = empirical(got.tokens, 4)
    assert total_variation(found, law) < limit
    assert total_variation(found, TARGET.law(0, 3)) > 5 * limit


def test_trap_03_q_in_another_precision_than_it_was_sampled_from() -> None:
    """q travels as integers, the draws are made from these, the verifier reads them unrounded."""
    _, masses = quantise([0.7, 0.2, 0.1 - 1e-9, 1e-9], 4)
    assert int(masses.sum()) == TOTAL_MASS
    ids = torch.arange(4).view(1, 1, 4).expand(4, 1, 4)
    packed = SparseQ(ids, torch.from_numpy(masses).view(1, 1, 4).expand(4, 1, 4))
    read = draft_masses(packed, torch.arange(4).view(4, 1)).flatten()
    assert (read * TOTAL_MASS).tolist() == masses.tolist()
    assert read.dtype == torch.float64


@pytest.mark.parametrize("rule", SAMPLED_RULES)
def test_trap_04_pruned_draft_vocabulary(rule: RejectionRule) -> None:
    """q is zero on ids the drafter does not have, and speaks the target's ids: still exact."""
    pruned = DRAFT.logits.clone()
    pruned[:, [0, 2]] = -torch.inf
    draft = Toy(4, pruned)
    assert set(quantised(draft, 2)[0].flatten().tolist()) == {1, 3}
    result = enumerate_round(rule, TARGET, draft, 2, entries=2)
    assert total_variation(result.law, TARGET.law(0, 3)) < 1e-9


@pytest.mark.parametrize("rule", SAMPLED_RULES)
def test_trap_05_scores_of_a_deterministic_proposer_are_not_q(rule: RejectionRule) -> None:
    """Drafts that are a function of the context have one-hot q; frequencies as q are wrong."""
    frequencies = DRAFT.probabilities.argmax(dim=1)
    ids, masses = quantised(DRAFT, 4)
    assert torch.equal(ids[:, 0], frequencies)
    certain = quantised(
        Toy(4, torch.full_like(DRAFT.logits, -torch.inf).scatter(1, frequencies.unsqueeze(1), 0.0)),
        4,
    )
    draft = Toy(4, DRAFT.logits * 1e6)  # samples its argmax, always
    honest = enumerate_round(rule, TARGET, draft, 2, claimed=certain)
    assert total_variation(honest.law, TARGET.law(0, 3)) < 1e-9
    claimed = enumerate_round(rule, TARGET, draft, 2, claimed=(ids, masses))
    assert total_variation(claimed.law, TARGET.law(0, 3)) > 0.01


def test_trap_05_blocks_without_q_are_packed_as_one_hot() -> None:
    q = pack_q([[7, 8], [3]], [None, None], 2)
    assert q is None
    drafts = torch.tensor([[7, 8]])
    assert draft_masses(one_hot(drafts), drafts).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("rule", SAMPLED_RULES)
def test_trap_06_truncated_q_sent_but_full_q_sampled(rule: RejectionRule) -> None:
    full = quantised(DRAFT, 4)
    ids, masses = quantised(DRAFT, 2)
    sent = (torch.nn.functional.pad(ids, (0, 2)), torch.nn.functional.pad(masses, (0, 2)))
    wrong = enumerate_round(rule, TARGET, DRAFT, 2, entries=4, claimed=sent)
    assert total_variation(wrong.law, TARGET.law(0, 3)) > 0.01
    right = enumerate_round(rule, TARGET, DRAFT, 2, entries=2)
    assert total_variation(right.law, TARGET.law(0, 3)) < 1e-12
    # The helper truncates first, so it can only draw what it sends.
    draws = sample_rows(masses[0].expand(5000, 2).numpy(), np.arange(5000), 0, 0)
    assert set(ids[0][torch.from_numpy(draws)].tolist()) <= set(ids[0].tolist())
    assert int(full[1][0].sum()) == int(masses[0].sum()) == TOTAL_MASS


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_trap_07_each_draft_is_judged_by_the_target_after_its_predecessors(
    rule: RejectionRule,
) -> None:
    """Teacher forcing itself is the engine's; here: row j, not row 0, judges draft j."""
    best = torch.tensor([3, 1, 4, 2])
    logits = torch.full((4, 6), -30.0).scatter(1, best.unsqueeze(1), 30.0)
    order = torch.tensor([2, 0, 3, 1])  # rows lie in another order than positions
    inputs = VerifyInputs(
        logits=logits[torch.argsort(order)],
        rows=pack_rows([(Sampling(seed=1), 9, 4)]),
        flags=SamplingFlags.of([Sampling()]),
        row_index=order.unsqueeze(0),
        draft_ids=best[:3].unsqueeze(0),
        draft_lengths=torch.tensor([3]),
    )
    result = verify(rule, inputs, VocabularyNoise(6))
    assert result.accepted.tolist() == [3]
    assert result.tokens.tolist() == [best.tolist()]


def test_trap_08_top_p_is_exact_on_peaked_rows() -> None:
    """Mass kept by top-p, against float64: nothing missing, nothing extra."""
    generator = torch.Generator().manual_seed(0)
    for peak in (0.0, 5.0, 12.0):
        logits = torch.randn(8, 2000, generator=generator) * 2
        logits[:, 77] += peak
        for p in (0.5, 0.9, 0.99):
            sampling = Sampling(top_p=p)
            rows = pack_rows([(sampling, 0, 8)])
            got = process_logits(logits, rows, SamplingFlags.of([sampling]))
            exact = logits.double().softmax(dim=1).sort(dim=1, descending=True)
            mass_above = exact.values.cumsum(dim=1) - exact.values
            expected = torch.zeros_like(mass_above).scatter(
                1, exact.indices, (mass_above < p).double()
            )
            assert torch.equal(torch.isfinite(got).double(), expected)


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_trap_09_no_bonus_behind_a_draft_that_was_cut(rule: RejectionRule) -> None:
    """A block cut to two tokens ends with the target's token at its own row, not the block's."""
    best = torch.tensor([3, 1, 4, 2])
    logits = torch.full((4, 6), -30.0).scatter(1, best.unsqueeze(1), 30.0)
    inputs = VerifyInputs(
        logits=logits,
        rows=pack_rows([(Sampling(), 9, 4)]),
        flags=SamplingFlags.of([Sampling()]),
        row_index=torch.arange(4).unsqueeze(0),
        draft_ids=best[:3].unsqueeze(0),
        draft_lengths=torch.tensor([2]),
    )
    result = verify(rule, inputs, VocabularyNoise(6))
    assert result.accepted.tolist() == [2]
    assert result.tokens.tolist() == [[3, 1, 4, -1]]
    # A stop condition inside the block cuts the bonus and the count alike.
    cut = Round(base=9, offered=3, drafted=3, accepted=3, emitted=4).cut(2)
    assert (cut.accepted, cut.emitted) == (2, 2)


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_trap_10_all_accepted_still_names_every_draft_token(rule: RejectionRule) -> None:
    """A drafter that lacks its last token's state needs that token back: it is in the result."""
    best = torch.tensor([3, 1, 4])
    logits = torch.full((3, 6), -30.0).scatter(1, best.unsqueeze(1), 30.0)
    inputs = VerifyInputs(
        logits=logits,
        rows=pack_rows([(Sampling(), 0, 3)]),
        flags=SamplingFlags.of([Sampling()]),
        row_index=torch.arange(3).unsqueeze(0),
        draft_ids=best[:2].unsqueeze(0),
        draft_lengths=torch.tensor([2]),
    )
    result = verify(rule, inputs, VocabularyNoise(6))
    assert int(result.accepted[0]) + 1 == 3
    assert result.tokens[0].tolist() == best.tolist()


def test_trap_11_there_is_no_lossy_rule() -> None:
    """Every rule that can be selected is in this list, and the tests run over the list."""
    assert {rule.value for rule in RejectionRule} == {"coupled", "standard", "block"}


def test_trap_12_choices_do_not_depend_on_the_batch() -> None:
    """Given equal logits. Whether a model's logits depend on the batch is the engine's matter."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(40, 997, generator=generator) * 3
    samplings = [
        Sampling(temperature=t, top_k=k, top_p=p, seed=i)
        for i, (t, k, p) in enumerate(
            itertools.product((0.0, 0.7, 1.0, 1.5), (0, 20), (1.0, 0.9, 0.5, 0.1, 0.99))
        )
    ]
    noise = VocabularyNoise(997)

    def chosen(picked: list[int]) -> list[int]:
        batch = [samplings[i] for i in picked]
        rows: RowSampling = pack_rows([(s, 50, 1) for s in batch])
        flags = SamplingFlags.of(batch)
        return choose(process_logits(logits[picked], rows, flags), rows, flags, noise).tolist()

    together = chosen(list(range(40)))
    assert together == [chosen([i])[0] for i in range(40)]
    backwards = list(range(39, -1, -1))
    assert chosen(backwards) == together[::-1]


def test_trap_12_shared_noise_does_not_depend_on_the_batch() -> None:
    together = gumbel(np.arange(50), np.arange(50), np.arange(300))
    single = [gumbel(i, i, np.arange(300))[0] for i in range(50)]
    assert np.array_equal(together, np.stack(single))
