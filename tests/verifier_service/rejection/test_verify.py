"""What holds for every rule: shapes, padding, mixed batches, K = 0."""

from __future__ import annotations

import pytest
import torch

from outrider.sparse_q import TOTAL_MASS
from tests.verifier_service.rejection.batches import batch, certain, flat
from verifier_service.messages import RejectionRule, Sampling, SparseRow
from verifier_service.noise import VocabularyNoise
from verifier_service.rejection import SparseQ, VerifyInputs, pack_q, verify
from verifier_service.sampling import RowSampling, choose, process_logits

GREEDY = Sampling(temperature=0)


@pytest.fixture(params=list(RejectionRule), ids=lambda rule: str(rule.value))
def rule(request: pytest.FixtureRequest) -> RejectionRule:
    chosen: RejectionRule = request.param
    return chosen


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5)])
def test_accepts_until_the_first_difference(rule: RejectionRule, sampling: Sampling) -> None:
    for wrong_at in range(4):
        truth = [3, 1, 4, 2]
        draft = [*truth[:wrong_at], 7, *truth[wrong_at + 1 :]][:3]
        inputs, noise = batch(certain(*truth), [sampling], [draft])
        result = verify(rule, inputs, noise)
        assert result.accepted.tolist() == [wrong_at]
        expected = truth[: wrong_at + 1] + [-1] * (3 - wrong_at)
        assert result.tokens.tolist() == [expected]


def test_lengths_differ_within_a_batch(rule: RejectionRule) -> None:
    logits = certain(3, 1, 4, 5, 6, 2, 0)
    inputs, noise = batch(logits, [Sampling(seed=i) for i in range(3)], [[3, 1], [], [6, 3]])
    result = verify(rule, inputs, noise)
    assert result.accepted.tolist() == [2, 0, 1]
    assert result.tokens.tolist() == [[3, 1, 4], [5, -1, -1], [6, 2, -1]]


def test_padding_is_not_a_draft(rule: RejectionRule) -> None:
    """A padded place that happens to hold the right token must not be accepted."""
    inputs, noise = batch(certain(0, 0, 0), [GREEDY], [[0, 0]])
    for length in range(3):
        cut = VerifyInputs(
            inputs.logits,
            inputs.rows,
            inputs.flags,
            inputs.row_index,
            inputs.draft_ids,
            torch.tensor([length]),
        )
        assert verify(rule, cut, noise).accepted.tolist() == [length]


def test_plain_decoding_is_the_same_call(rule: RejectionRule) -> None:
    samplings = [GREEDY, Sampling(seed=2), Sampling(temperature=0.5, top_k=2, seed=3)]
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    inputs, noise = batch(logits, samplings, [[], [], []])
    result = verify(rule, inputs, noise)
    assert result.tokens.shape == (3, 1)
    assert result.accepted.tolist() == [0, 0, 0]
    assert int(result.tokens[0, 0]) == int(logits[0].argmax())
    assert int(result.tokens[2, 0]) in logits[2].topk(2).indices.tolist()


def test_plain_decoding_with_a_q_is_the_same_call(rule: RejectionRule) -> None:
    """A batch of width 0 may still carry an empty q."""
    inputs, noise = batch(flat(2), [Sampling(), Sampling(seed=1)], [[], []])
    empty = torch.zeros(2, 0, 3, dtype=torch.int64)
    with_q = VerifyInputs(
        inputs.logits,
        inputs.rows,
        inputs.flags,
        inputs.row_index,
        inputs.draft_ids,
        inputs.draft_lengths,
        SparseQ(empty, empty),
    )
    assert torch.equal(verify(rule, with_q, noise).tokens, verify(rule, inputs, noise).tokens)


def test_greedy_and_random_rows_share_a_batch(rule: RejectionRule) -> None:
    """Each sequence gets what it would get alone, whoever is beside it."""
    generator = torch.Generator().manual_seed(1)
    samplings = [GREEDY, Sampling(seed=7), GREEDY, Sampling(temperature=0.6, top_p=0.8, seed=9)]
    drafts = [[1, 2], [3, 4, 5], [6], [0, 1, 2]]
    parts = [torch.randn(len(d) + 1, 8, generator=generator) * 2 for d in drafts]
    inputs, noise = batch(torch.cat(parts), samplings, drafts)
    together = verify(rule, inputs, noise)
    for b, (sampling, draft, part) in enumerate(zip(samplings, drafts, parts, strict=True)):
        alone_inputs, _ = batch(part, [sampling], [draft])
        alone = verify(rule, alone_inputs, noise)
        assert alone.accepted[0] == together.accepted[b]
        width = len(draft) + 1
        assert alone.tokens[0].tolist() == together.tokens[b, :width].tolist()


def test_sparse_and_one_hot_drafts_share_a_batch(rule: RejectionRule) -> None:
    generator = torch.Generator().manual_seed(2)
    samplings = [Sampling(seed=4), Sampling(seed=5), GREEDY]
    drafts = [[1, 2], [3, 4], [5, 6]]
    row = SparseRow((1, 2, 3), (TOTAL_MASS // 2, TOTAL_MASS // 4, TOTAL_MASS // 4))
    q = [[row, row], None, [SparseRow((5, 6), (1, TOTAL_MASS - 1))] * 2]
    logits = torch.randn(9, 8, generator=generator)
    inputs, noise = batch(logits, samplings, drafts, q=pack_q(drafts, q, 2))
    together = verify(rule, inputs, noise)
    for b in range(3):
        part = slice(3 * b, 3 * b + 3)
        alone_q = pack_q([drafts[b]], [q[b]], 2)
        alone_inputs, _ = batch(logits[part], [samplings[b]], [drafts[b]], q=alone_q)
        assert torch.equal(verify(rule, alone_inputs, noise).tokens[0], together.tokens[b])


def test_greedy_ignores_q(rule: RejectionRule) -> None:
    """Greedy matching needs no q, and a q that says otherwise changes nothing."""
    drafts = [[3, 1]]
    rows = [SparseRow((3, 1, 0), (10, 10, TOTAL_MASS - 20))] * 2
    inputs, noise = batch(certain(3, 1, 4), [GREEDY], drafts, q=pack_q(drafts, [rows], 2))
    assert verify(rule, inputs, noise).tokens.tolist() == [[3, 1, 4]]


def test_masked_tokens_are_refused_and_never_drawn(rule: RejectionRule) -> None:
    """Token 2 is forbidden everywhere (a grammar, a ban): drafting it gets it nowhere."""
    logits = flat(300)
    logits[:, 2] = -torch.inf
    drafts = [[2, 2]] * 100
    row = SparseRow((2, 3), (TOTAL_MASS - 5, 5))
    for q in (None, pack_q(drafts, [[row, row]] * 100, 2)):
        inputs, noise = batch(logits, [Sampling(seed=i) for i in range(100)], drafts, q=q)
        result = verify(rule, inputs, noise)
        assert result.accepted.sum() == 0
        assert not (result.tokens == 2).any()


def test_results_are_valid_ids(rule: RejectionRule) -> None:
    generator = torch.Generator().manual_seed(3)
    drafts = torch.randint(0, 8, (200, 4), generator=generator).tolist()
    logits = torch.randn(1000, 8, generator=generator) * 10
    samplings = [Sampling(seed=i, temperature=(i % 4) * 0.6) for i in range(200)]
    inputs, noise = batch(logits, samplings, drafts)
    result = verify(rule, inputs, noise)
    steps = torch.arange(5)
    real = steps <= result.accepted.unsqueeze(1)
    assert ((result.tokens >= 0) & (result.tokens < 8))[real].all()
    assert (result.tokens[~real] == -1).all()
    prefix = steps[:4] < result.accepted.unsqueeze(1)
    assert torch.equal(result.tokens[:, :4][prefix], inputs.draft_ids[prefix])


def test_coupled_tokens_are_the_rows_own_choices() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(4, 8, generator=generator)
    inputs, noise = batch(logits, [Sampling(seed=11)], [[0, 0, 0]])
    own = choose(inputs.logits, inputs.rows, inputs.flags, noise).tolist()
    inputs, noise = batch(logits, [Sampling(seed=11)], [own[:3]])
    result = verify(RejectionRule.COUPLED, inputs, noise)
    assert result.accepted.tolist() == [3]
    assert result.tokens.tolist() == [own]


@pytest.mark.parametrize("with_q", [False, True])
def test_nothing_is_read_back_to_the_host(rule: RejectionRule, with_q: bool) -> None:
    """On tensors without values, any host read or shape that depends on values raises."""
    drafts = [[1, 2, 3], [4], []]
    samplings = [Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1), GREEDY, Sampling()]
    row = SparseRow((1, 2, 3), (TOTAL_MASS - 2, 1, 1))
    q = pack_q(drafts, [[row] * 3, None, None], 3, "meta") if with_q else None
    here, _ = batch(flat(7), samplings, drafts)
    rows = RowSampling(
        here.rows.temperature.to("meta"),
        here.rows.top_k.to("meta"),
        here.rows.top_p.to("meta"),
        here.rows.min_p.to("meta"),
        here.rows.seed.to("meta"),
        here.rows.position.to("meta"),
    )
    there = VerifyInputs(
        process_logits(torch.empty(7, 8, device="meta"), rows, here.flags),
        rows,
        here.flags,
        here.row_index.to("meta"),
        here.draft_ids.to("meta"),
        here.draft_lengths.to("meta"),
        q,
    )
    result = verify(rule, there, VocabularyNoise(8, "meta"))
    assert (result.accepted.shape, result.tokens.shape) == ((3,), (3, 4))


def test_pack_q_pads_and_marks_one_hot() -> None:
    row = SparseRow((4, 5), (TOTAL_MASS - 1, 1))
    q = pack_q([[4, 5], [6]], [[row, row], None], 3)
    assert q is not None
    assert q.token_ids.tolist() == [[[4, 5], [4, 5], [0, 0]], [[6, 0], [0, 0], [0, 0]]]
    assert q.masses.tolist() == [
        [[TOTAL_MASS - 1, 1]] * 2 + [[0, 0]],
        [[TOTAL_MASS, 0], [0, 0], [0, 0]],
    ]
    fixed = pack_q([[4, 5]], [[row, row]], 2, entries=5)
    assert fixed is not None
    assert fixed.token_ids.shape == (1, 2, 5)
    with pytest.raises(ValueError, match="entries 1: a q row has 2"):
        pack_q([[4]], [[row]], 1, entries=1)
    assert pack_q([[1], []], [None, ()], 1) is None
