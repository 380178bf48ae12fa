"""Draft models change no token: the real session, client and scheduler around toy models."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from speculation.v1 import types_pb2

from proposer_service.draft_model.blocks import KeyBlocks
from proposer_service.draft_model.proposer import Budgets
from proposer_service.draft_model.text import GREEDY
from tests.exactness.enumeration import enumerate_round
from tests.exactness.rounds import empirical, expected_variation
from tests.proposer_service.draft_model.drafting import Drafting
from tests.regressions.bench import Bench, plain
from tests.regressions.network import ProposerServer, Wire
from tests.toy import Toy, total_variation
from verifier_service.messages import RejectionRule, Sampling

TARGET = Toy.target()
NEAR = TARGET.draft(sigma=0.5)
FAR = Toy.target(seed=99)


FORMS = (types_pb2.Q_FORM_ONE_HOT, types_pb2.Q_FORM_SPARSE)


def bench_of(drafting: Drafting, k: int, rule: RejectionRule = RejectionRule.COUPLED) -> Bench:
    server = ProposerServer(drafting.proposer, name="draft_model", context_limit=256, q_forms=FORMS)
    return Bench(Wire(server, k=k, rule=rule), k=k, rule=rule)


def requests(count: int) -> dict[str, tuple[list[int], Sampling]]:
    """Every temperature, filter, seed and length, side by side."""
    rng = random.Random(count)
    return {
        f"r{i}": (
            [rng.randrange(4) for _ in range(rng.randrange(1, 40))],
            Sampling(
                temperature=(0.0, 1.0, 0.7, 1.5)[i % 4],
                seed=i * 7 - 20,
                top_k=i % 3,
                top_p=1.0 if i % 5 else 0.9,
                max_tokens=rng.randrange(1, 40),
            ),
        )
        for i in range(count)
    }


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("draft", [TARGET, NEAR, FAR], ids=["same", "near", "far"])
def test_coupled_output_is_that_of_plain_decoding(k: int, draft: Toy) -> None:
    bench = bench_of(Drafting(draft, num_blocks=512), k)
    work = requests(12)
    for name, (prompt, sampling) in work.items():
        bench.add(name, prompt, sampling)
    bench.finish()
    for name, (prompt, sampling) in work.items():
        assert bench.tokens(name) == plain(prompt, sampling), name
    assert sum(bench.acceptance(name).num_accepted_draft_tokens for name in work) > 0


def test_a_small_cache_and_long_prompts_change_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    evictions = 0
    make_room = KeyBlocks._make_room

    def counted(self: KeyBlocks, *arguments: object) -> bool:
        nonlocal evictions
        evictions += 1
        return make_room(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(KeyBlocks, "_make_room", counted)
    drafting = Drafting(NEAR, num_blocks=24, budgets=Budgets(answer=12, piece=8))
    bench = bench_of(drafting, 3)
    work = requests(10)
    for name, (prompt, sampling) in work.items():
        bench.add(name, prompt, replace(sampling, max_tokens=sampling.max_tokens + 10))
    bench.finish()
    for name, (prompt, sampling) in work.items():
        wanted = plain(prompt, replace(sampling, max_tokens=sampling.max_tokens + 10))
        assert bench.tokens(name) == wanted, name
    assert evictions
    assert drafting.proposer.evictions


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_a_model_that_drafts_for_itself_is_always_right(temperature: float) -> None:
    bench = bench_of(Drafting(TARGET), 4)
    for i in range(3):
        sampling = Sampling(temperature=temperature, seed=-i, max_tokens=41)
        bench.add(f"r{i}", [1, 2, 3, i], sampling)
    bench.finish()
    for i in range(3):
        acceptance = bench.acceptance(f"r{i}")
        # The last round may verify more than max_tokens leaves room for.
        rounds = bench.rounds(f"r{i}")
        assert all(r.accepted == r.drafted for r in rounds[:-1])
        assert acceptance.num_accepted_draft_tokens >= 28
    hits = bench.source.state()  # type: ignore[attr-defined]
    assert hits.lookahead_hits > 0


def test_without_its_noise_a_model_would_not_even_agree_with_itself() -> None:
    accepted = {}
    for method in (None, "greedy"):
        bench = bench_of(Drafting(TARGET, sample_method=method), 4)
        bench.add("a", [1, 2, 3], Sampling(seed=3, max_tokens=80))
        bench.finish()
        assert bench.tokens("a") == plain([1, 2, 3], Sampling(seed=3, max_tokens=80))
        accepted[method] = bench.acceptance("a").num_accepted_draft_tokens
    assert accepted["greedy"] < 0.7 * accepted[None]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("rule", [RejectionRule.STANDARD, RejectionRule.BLOCK])
def test_the_drafts_of_the_other_rules_leave_the_targets_law(rule: RejectionRule) -> None:
    """What is drafted under them is the argmax, a function of the text: one-hot q is the truth."""
    prompt, k = [1, 2], 2
    drafting = Drafting(NEAR)
    bench = bench_of(drafting, k, rule)
    count = 1000
    for i in range(count):
        bench.add(f"r{i}", prompt, Sampling(seed=i, max_tokens=3))
    bench.finish()
    tokens = torch.tensor([bench.tokens(f"r{i}") for i in range(count)])
    law = TARGET.law(TARGET.context(prompt), 3)
    assert total_variation(empirical(tokens, 4), law) < 1.5 * expected_variation(law, count)
    assert (
        sum(bench.acceptance(f"r{i}").num_accepted_draft_tokens for i in range(count)) > count / 4
    )
    # The exact law of a round of such drafts.
    for context in range(16):
        result = enumerate_round(rule, TARGET, NEAR, k, context=context, deterministic=True)
        assert total_variation(result.law, TARGET.law(context, k + 1)) < 1e-12


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("rule", [RejectionRule.STANDARD, RejectionRule.BLOCK])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_drawn_drafts_leave_the_targets_law(rule: RejectionRule, temperature: float) -> None:
    prompt, k, count = [1, 2], 3, 1000
    law = TARGET.processed(Sampling(temperature=temperature)).law(TARGET.context(prompt), 4)
    accepted = {}
    for method in ("probabilistic", "greedy"):
        bench = bench_of(Drafting(NEAR, sample_method=method), k, rule)
        for i in range(count):
            sampling = Sampling(temperature=temperature, seed=i, max_tokens=4)
            bench.add(f"r{i}", prompt, sampling)
        bench.finish()
        tokens = torch.tensor([bench.tokens(f"r{i}") for i in range(count)])
        distance = total_variation(empirical(tokens, 4), law)
        assert distance < 1.3 * expected_variation(law, count)
        accepted[method] = sum(
            bench.acceptance(f"r{i}").num_accepted_draft_tokens for i in range(count)
        )
    assert accepted["probabilistic"] > 1.05 * accepted["greedy"]


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_the_hello_says_whether_noise_is_shared(rule: RejectionRule) -> None:
    drafting = Drafting(NEAR)
    bench = bench_of(drafting, 3, rule)
    bench.add("a", [1, 2, 3], Sampling(seed=3, max_tokens=9))
    bench.begin()
    bench.step()
    (text,) = drafting.proposer._texts.values()
    if rule is RejectionRule.COUPLED:
        assert (text.sampling.temperature, text.sampling.seed) == (1.0, 3)
    else:
        assert text.sampling is GREEDY
