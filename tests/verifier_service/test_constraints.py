"""Constrained requests in the scheduler: exact with any drafts, ended where the structure ends."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.toy_engine import Guess, ToyEngine, ToySource
from tests.verifier_service.grammar.toy_grammar import (
    OTHER_STOP,
    STOP,
    TOY,
    adversary,
    constraint,
    regex,
    text,
    toy_oracle,
)
from tests.verifier_service.scheduler_bench import Bench
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.messages import (
    DraftBlock,
    FinishReason,
    QForm,
    RejectionRule,
    Sampling,
    SparseRow,
)

PATTERNS = ["ab*c", "(a|b|c){3,9}", r"\[(1,)*1\]", "[abc]{0,4}1", '("a",?)+']


@dataclass
class ToyBench(Bench):
    """The scheduler's bench with the grammar's vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine = ToyEngine(
            TOY, num_blocks=self.num_blocks, block_size=self.block_size, rule=self.rule
        )


def sampling(**changes: Any) -> Sampling:
    base = Sampling(temperature=1.0, seed=5, max_tokens=24, stop_token_ids=frozenset({STOP}))
    return replace(base, **changes)


def plain(pattern: str | None, wanted: Sampling, prompt: tuple[int, ...] = (1, 2)) -> list[int]:
    bench = ToyBench(guess=None, k=0)
    return bench.run(
        "plain", prompt, wanted, constraint=None if pattern is None else constraint(pattern)
    )


@pytest.mark.parametrize("guess", [adversary, toy_oracle()], ids=["adversary", "oracle"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_speculation_changes_no_token_of_a_mixed_batch(
    k: int, temperature: float, guess: Guess
) -> None:
    bench = ToyBench(guess=guess, k=k, max_num_seqs=5)
    asked: dict[str, tuple[str | None, Sampling]] = {}
    for seed, pattern in enumerate([*PATTERNS, None, *PATTERNS, None]):
        asked[f"r{seed}"] = pattern, sampling(temperature=temperature, seed=seed)
    for name, (pattern, wanted) in asked.items():
        bench.add(name, [1, 2], wanted, constraint=None if pattern is None else constraint(pattern))
    bench.finish()
    for name, (pattern, wanted) in asked.items():
        tokens = bench.tokens(name)
        assert tokens == plain(pattern, wanted), name
        if pattern is None:
            continue
        last = bench.outputs[name][-1]
        if last.finish_reason is FinishReason.STOP:
            assert re.fullmatch(pattern, text(tokens)), text(tokens)
            assert last.stop_token_id == STOP and tokens[-1] == STOP
        else:
            assert len(tokens) == wanted.max_tokens
    stats = [o.round for outputs in bench.outputs.values() for o in outputs if o.round]
    assert sum(r.accepted for r in stats) > 0


def test_sglang_21723_a_structure_that_ends_inside_a_block_ends_the_request_there() -> None:
    bench = ToyBench(guess=lambda view, rng: [0, STOP, 0, 1, 2][: view.max_draft_tokens], k=5)
    tokens = bench.run("a", [1, 2], sampling(temperature=0.0), constraint=constraint("aa"))
    assert tokens == [0, 0, STOP]
    last = bench.outputs["a"][-1]
    assert last.finish_reason is FinishReason.STOP and last.stop_token_id == STOP
    assert not bench.scheduler.has_work


def test_openvino_4081_drafts_past_the_stop_token_are_not_even_verified() -> None:
    bench = ToyBench(guess=lambda view, rng: [0, STOP, STOP, 0, 1][: view.max_draft_tokens], k=5)
    bench.run("a", [1, 2], sampling(temperature=0.0), constraint=constraint("aa"))
    assert max(chunk.drafts for step in bench.engine.steps for chunk in step) == 2


@pytest.mark.parametrize("k", [0, 4])
def test_ignore_eos_does_not_hide_the_end_of_a_structure(k: int) -> None:
    bench = ToyBench(guess=adversary if k else None, k=k)
    wanted = sampling(stop_token_ids=frozenset())
    tokens = bench.run("a", [1, 2], wanted, constraint=constraint("[ab]{2,4}c"))
    assert re.fullmatch("[ab]{2,4}c", text(tokens))
    assert bench.outputs["a"][-1].finish_reason is FinishReason.STOP
    assert tokens[-1] == STOP


@pytest.mark.parametrize("k", [0, 1, 8])
def test_min_tokens_beyond_the_structure_ends_it_without_a_stop_token(k: int) -> None:
    bench = ToyBench(guess=adversary if k else None, k=k)
    wanted = sampling(min_tokens=10)
    tokens = bench.run("a", [1, 2], wanted, constraint=constraint("ac1"))
    assert text(tokens) == "ac1" and STOP not in tokens
    last = bench.outputs["a"][-1]
    assert last.finish_reason is FinishReason.STOP and not last.refusal


def test_a_request_that_its_own_rules_leave_no_token_is_refused() -> None:
    bench = ToyBench(k=4, guess=adversary)
    wanted = sampling(allowed_token_ids=(0, STOP))
    bench.add("free", [1, 2], sampling(seed=9))
    bench.run("a", [1, 2], wanted, constraint=constraint("ab"))
    assert bench.outputs["a"][-1].refusal
    assert bench.tokens("free") == plain(None, sampling(seed=9))


def test_a_requests_own_stop_id_may_end_it() -> None:
    wanted = sampling(stop_token_ids=frozenset({OTHER_STOP}), logit_bias=((STOP, -100.0),))
    bench = ToyBench(k=4, guess=adversary)
    own = GrammarConstraint(regex("ac"), [OTHER_STOP])
    tokens = bench.run("a", [1, 2], wanted, constraint=own)
    assert tokens[-1] == OTHER_STOP and text(tokens) == "ac"


@pytest.mark.parametrize("limit", range(1, 8))
def test_max_tokens_cuts_a_structure(limit: int) -> None:
    wanted = sampling(max_tokens=limit)
    bench = ToyBench(k=8, guess=toy_oracle())
    tokens = bench.run("a", [1, 2], wanted, constraint=constraint("[abc]{30}"))
    assert tokens == plain("[abc]{30}", wanted)
    assert len(tokens) <= limit
    assert bench.outputs["a"][-1].finish_reason is FinishReason.LENGTH


def test_preemption_keeps_the_state() -> None:
    bench = ToyBench(k=4, guess=adversary, num_blocks=12, max_num_seqs=4)
    asked = {f"r{i}": ("[abc]{20,30}1", sampling(seed=i)) for i in range(5)}
    for name, (pattern, wanted) in asked.items():
        bench.add(name, [1, 2, 3], wanted, constraint=constraint(pattern))
    bench.finish()
    assert bench.scheduler.num_preemptions > 0
    for name, (pattern, wanted) in asked.items():
        assert bench.tokens(name) == plain(pattern, wanted, (1, 2, 3)), name


def test_the_first_token_is_masked_also_behind_a_chunked_prompt() -> None:
    bench = ToyBench(k=0, guess=None, budget=8)
    tokens = bench.run("a", [0] * 50, sampling(), constraint=constraint("1{5}"))
    assert text(tokens) == "11111"
    masked = [c for step in bench.engine.steps for c in step]
    assert [c.samples for c in masked][:3] == [False, False, False]


def test_drafts_are_cut_at_the_first_token_refused_and_the_offer_is_told() -> None:
    bench = ToyBench(k=4, guess=lambda view, rng: [0, 0, 5, 0][: view.max_draft_tokens])
    bench.run("a", [1, 2], sampling(max_tokens=8), constraint=constraint("a+"))
    rounds = [o.round for o in bench.outputs["a"] if o.round and o.round.offered == 4]
    assert rounds and all(r.drafted == 2 for r in rounds)


def test_a_draft_that_is_refused_at_once_says_why_nothing_was_drafted() -> None:
    bench = ToyBench(k=4, guess=lambda view, rng: [5] * view.max_draft_tokens)
    bench.run("a", [1, 2], sampling(max_tokens=6), constraint=constraint("a+"))
    reasons = {o.round.off_reason for o in bench.outputs["a"][1:-1] if o.round}
    assert reasons == {"the output's structure refuses the drafts offered"}


@pytest.mark.parametrize(
    ("rule", "temperature", "drafted"),
    [
        (RejectionRule.STANDARD, 1.0, 3),
        (RejectionRule.BLOCK, 1.0, 3),
        (RejectionRule.STANDARD, 0.0, 1),
    ],
)
def test_a_sampled_draft_is_not_cut_by_its_ids(
    rule: RejectionRule, temperature: float, drafted: int
) -> None:
    class Sampled(ToySource):
        def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
            row = SparseRow((0, 5), (2**31, 2**31))
            return {
                number: [replace(b, q_form=QForm.SPARSE, q=(row,) * 3) for b in blocks]
                for number, blocks in super().collect().items()
            }

    bench = ToyBench(k=3, rule=rule)
    bench.source = Sampled(lambda view, rng: [0, 5, 0])
    bench.run("a", [1, 2], sampling(temperature=temperature), constraint=constraint("a{9}"))
    counts = [o.round.drafted for o in bench.outputs["a"] if o.round and o.round.offered == 3]
    assert counts and set(counts) == {drafted}
    assert text(bench.tokens("a")) == "a" * 9


class Broken(GrammarConstraint):
    """Allows what it then refuses, or fails outright."""

    def __init__(self, where: str) -> None:
        super().__init__(regex("a{20}"))
        self._where = where
        self._calls = 0

    def _tick(self, where: str) -> None:
        if where == self._where:
            self._calls += 1
            if self._calls == 3:
                raise RuntimeError("the library's own check failed")

    def admitted(self, draft_ids: Any) -> int:
        self._tick("admitted")
        return super().admitted(draft_ids)

    def masks(self, draft_ids: Any) -> Any:
        self._tick("masks")
        return super().masks(draft_ids)

    def advance(self, token_ids: Any) -> None:
        self._tick("advance")
        super().advance([1] if self._where == "lies" else token_ids)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("admitted", "own check failed"),
        ("masks", "own check failed"),
        ("advance", "own check failed"),
        ("lies", "token 1 was refused by the grammar"),
    ],
)
def test_sglang_24283_a_failing_constraint_fails_its_request_alone(where: str, says: str) -> None:
    bench = ToyBench(k=4, guess=toy_oracle())
    for seed in range(3):
        bench.add(f"free{seed}", [1, 2], sampling(seed=seed))
        bench.add(f"ok{seed}", [1, 2], sampling(seed=seed), constraint=constraint("[abc]{9}"))
    bench.add("bad", [1, 2], sampling(), constraint=Broken(where))
    bench.finish()
    assert says in bench.outputs["bad"][-1].error
    assert bench.scheduler.num_free_blocks == bench.num_blocks
    for seed in range(3):
        assert bench.tokens(f"free{seed}") == plain(None, sampling(seed=seed))
        assert bench.tokens(f"ok{seed}") == plain("[abc]{9}", sampling(seed=seed))


def test_sglang_20148_many_structured_requests_one_after_the_other_with_many_drafts() -> None:
    bench = ToyBench(k=16, guess=adversary, num_blocks=32)
    for seed in range(15):
        pattern = PATTERNS[seed % len(PATTERNS)]
        wanted = sampling(seed=seed)
        tokens = bench.run(f"r{seed}", [1, 2], wanted, constraint=constraint(pattern))
        assert tokens == plain(pattern, wanted)
    assert bench.scheduler.num_free_blocks == 32


def test_nothing_is_masked_where_nothing_is_constrained() -> None:
    bench = ToyBench(k=4, guess=adversary)
    bench.add("a", [1, 2], sampling())
    bench.scheduler.admit()
    while bench.scheduler.has_work:
        assert all(chunk.mask is None for chunk in bench.step())
