"""What vLLM's users reported of sampling parameters under speculation, one test each."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.exactness.histories import Setting
from tests.exactness.reference import processed
from tests.regressions.bench import Bench
from tests.toy import Toy
from tests.toy_engine import ToySource, oracle
from verifier_service.messages import Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

# A target that says token 1 for ever, unless it is told otherwise.
STUCK = Toy(4, torch.tensor([[0.0, 3.0, 1.5, 1.0]], dtype=torch.float64).expand(16, 4))


def generated(sampling: Sampling, k: int) -> tuple[list[int], int]:
    """Tokens, and drafts accepted, where the drafter guesses the target's unprocessed favourite."""
    bench = Bench(ToySource(oracle(STUCK)), k=k, toy=STUCK)
    bench.add("a", [0, 1], sampling)
    bench.finish()
    return bench.tokens("a"), bench.acceptance("a").num_accepted_draft_tokens


def test_vllm_18902_a_frequency_penalty_is_not_ignored_with_drafts() -> None:
    """Drafts of the penalised token are refused from the row on at which it has been said enough.

    Reported: the penalty had no effect with speculation, which repeated itself for ever.
    """
    sampling = Sampling(temperature=0.0, frequency_penalty=1.0, max_tokens=12)
    tokens, accepted = generated(sampling, k=6)
    assert tokens == generated(sampling, k=0)[0]
    assert max(Counter(tokens).values()) < 6
    # Where no penalty speaks against it, the same drafter is right and its drafts count.
    free, free_accepted = generated(Sampling(temperature=0.0, max_tokens=12), k=6)
    assert free == [1] * 12
    assert free_accepted > accepted


@pytest.mark.parametrize(
    "sampling",
    [Sampling(min_p=0.5), Sampling(logit_bias=((1, -100.0), (3, 4.0)))],
    ids=["min_p", "logit_bias"],
)
def test_vllm_42744_min_p_and_logit_bias_reach_draft_rows_too(sampling: Sampling) -> None:
    """Reported: applied to bonus rows alone, drafts that they exclude would be accepted."""
    setting = Setting(STUCK, (0, 1), sampling)
    rows = setting.by_engine(torch.tensor([[1, 2, 1]])).numpy()
    assert rows.shape == (4, 4)
    for row, drafts in zip(rows, ([], [1], [1, 2], [1, 2, 1]), strict=True):
        raw = STUCK.logits[STUCK.context([0, 1, *drafts])].numpy()
        assert row.tolist() == processed(raw, sampling, [0, 1], drafts).tolist()
        assert row.tolist() != raw.tolist()


def test_vllm_42744_drafts_that_logit_bias_excludes_are_never_emitted() -> None:
    sampling = Sampling(temperature=1.0, seed=4, logit_bias=((1, -100.0),), max_tokens=40)
    tokens, accepted = generated(sampling, k=8)
    assert 1 not in tokens
    assert accepted == 0
    assert tokens == generated(sampling, k=0)[0]


def test_vllm_42744_drafts_that_min_p_excludes_are_never_emitted() -> None:
    """Token 0 is a twentieth as likely as token 1; drafts of it are refused under min_p."""
    adversary = ToySource(lambda view, rng: [0] * view.max_draft_tokens)
    sampling = Sampling(temperature=1.5, seed=4, min_p=0.3, max_tokens=60)
    bench = Bench(adversary, k=4, toy=STUCK)
    bench.add("a", [0, 1], sampling)
    bench.finish()
    assert 0 not in bench.tokens("a")
    assert bench.acceptance("a").num_accepted_draft_tokens == 0
    free = Sampling(temperature=1.5, seed=4, max_tokens=60)
    assert 0 in generated(free, k=0)[0]
