"""The scheduler on the toy engine: what runs, what it emits, what it holds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.acceptance import Acceptance
from tests.toy import Toy
from tests.toy_engine import ToySource, oracle
from tests.verifier_service.scheduler_bench import Bench, plain, sampling
from verifier_service.core import QueueFullError
from verifier_service.messages import (
    DraftBlock,
    FinishReason,
    RejectionRule,
    Request,
    Sampling,
)
from verifier_service.scheduler import StepTimes


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_speculation_changes_no_token(k: int, temperature: float, seed: int) -> None:
    wanted = sampling(temperature=temperature, seed=seed, max_tokens=40)
    bench = Bench(k=k)
    bench.add("a", [1, 2, 3], wanted)
    bench.finish()
    assert bench.tokens("a") == plain([1, 2, 3], wanted)


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_every_rule_is_greedy_matching_at_temperature_0(rule: RejectionRule) -> None:
    wanted = sampling(temperature=0.0)
    bench = Bench(rule=rule)
    bench.add("a", [1, 2], wanted)
    bench.finish()
    assert bench.tokens("a") == plain([1, 2], wanted)


def test_batches_mix_greedy_and_seeded_requests() -> None:
    mix = {
        f"r{i}": ([i % 4, (i + 1) % 4], sampling(temperature=t, seed=i, max_tokens=10 + i))
        for i, t in enumerate([0.0, 0.5, 1.0, 1.5, 0.0, 2.0, 0.7, 1.0, 1.0, 0.3])
    }
    bench = Bench(max_num_seqs=4)
    for name, (prompt, wanted) in mix.items():
        bench.add(name, prompt, wanted)
    bench.finish()
    for name, (prompt, wanted) in mix.items():
        assert bench.tokens(name) == plain(prompt, wanted), name


def test_a_perfect_drafter_emits_k_plus_one_tokens_a_step() -> None:
    toy = Toy.target()
    bench = Bench(guess=oracle(toy), k=4)
    bench.add("a", [1, 2], sampling(temperature=0.0, max_tokens=21))
    bench.finish()
    rounds = [output.round for output in bench.outputs["a"] if output.round]
    assert [r.emitted for r in rounds] == [1, 5, 5, 5, 5]
    assert [r.accepted for r in rounds] == [0, 4, 4, 4, 4]


def test_max_tokens_inside_a_block_cuts_it_and_its_count() -> None:
    bench = Bench(guess=oracle(Toy.target()), k=8)
    bench.add("a", [1, 2], sampling(temperature=0.0, max_tokens=6))
    bench.finish()
    assert len(bench.tokens("a")) == 6
    last = bench.outputs["a"][-1]
    assert last.finish_reason is FinishReason.LENGTH
    # 1 from the prefill; then 4 drafts and the target's own, never a draft that could not count.
    assert last.round is not None
    assert (last.round.drafted, last.round.accepted, last.round.emitted) == (4, 4, 5)


def test_a_stop_token_inside_a_block_ends_the_request_there() -> None:
    wanted = sampling(temperature=0.0, max_tokens=30)
    reference = plain([1, 2], wanted)
    stop = reference[7]
    end = reference.index(stop) + 1
    bench = Bench(guess=oracle(Toy.target()), k=8)
    bench.add("a", [1, 2], replace(wanted, stop_token_ids=frozenset({stop})))
    bench.finish()
    assert bench.tokens("a") == reference[:end]
    last = bench.outputs["a"][-1]
    assert (last.finish_reason, last.stop_token_id) == (FinishReason.STOP, stop)
    assert last.round is not None
    assert last.round.accepted == min(last.round.accepted, last.round.emitted)
    total = Acceptance(8)
    for output in bench.outputs["a"]:
        assert output.round is not None
        total.add(output.round)
    assert total.num_accepted_draft_tokens <= len(reference[:end])


def test_rounds_add_up_to_the_tokens() -> None:
    bench = Bench()
    bench.add("a", [0, 1], sampling(max_tokens=33))
    bench.finish()
    base = 0
    for output in bench.outputs["a"]:
        assert output.round is not None
        assert output.round.base == base
        assert output.round.emitted == len(output.token_ids)
        assert 0 <= output.round.accepted <= output.round.drafted <= output.round.offered
        base += output.round.emitted
    assert base == 33


def test_requests_choose_their_own_k() -> None:
    bench = Bench(guess=oracle(Toy.target()), k=4)
    wanted = sampling(temperature=0.0, max_tokens=21)
    bench.add("off", [1, 2], wanted, k=0)
    bench.add("two", [1, 2], wanted, k=2)
    bench.add("more", [1, 2], wanted, k=9)
    bench.finish()
    drafted = {
        name: max(o.round.drafted for o in outputs if o.round)
        for name, outputs in bench.outputs.items()
    }
    assert drafted == {"off": 0, "two": 2, "more": 4}
    assert bench.tokens("off") == bench.tokens("two") == bench.tokens("more")


def test_a_request_without_speculation_is_never_shown_to_proposers() -> None:
    bench = Bench()
    bench.add("off", [1, 2], sampling(), k=0)
    bench.add("on", [1, 2], sampling())
    bench.finish()
    assert isinstance(bench.source, ToySource)
    assert bench.source.seen == {2}
    assert bench.source.closed == [(2, True)]


def test_long_prompts_are_prefilled_in_chunks_beside_running_rounds() -> None:
    bench = Bench(budget=24, max_num_seqs=4, block_size=8)
    long = [i % 4 for i in range(100)]
    bench.add("short", [1], sampling(max_tokens=30))
    bench.step()
    bench.add("long", long, sampling(max_tokens=4))
    bench.finish()
    assert bench.tokens("long") == plain(long, sampling(max_tokens=4))
    mixed = [step for step in bench.engine.steps if len(step) == 2]
    assert all(sum(len(chunk.ids) for chunk in step) <= 24 for step in bench.engine.steps)
    # The short one got a token in every step that the long one's prefill took.
    prefill = [step for step in mixed if len(step[-1].ids) > 5]
    assert len(prefill) >= 4
    assert all(step[0].samples for step in prefill)


def test_a_full_cache_preempts_and_recomputes() -> None:
    """24 slots for three sequences that each grow to 22."""
    bench = Bench(num_blocks=6, block_size=4, max_num_seqs=3)
    wanted = sampling(max_tokens=20)
    for name in "abc":
        bench.add(name, [1, 2], wanted)
    bench.finish()
    for name in "abc":
        assert bench.tokens(name) == plain([1, 2], wanted)
    assert bench.scheduler.num_preemptions, "nothing was preempted: the test does not test"
    assert bench.scheduler.num_free_blocks == 6


def test_a_full_cache_gives_up_drafts_before_sequences() -> None:
    bench = Bench(guess=oracle(Toy.target()), num_blocks=2, block_size=4, k=4, max_num_seqs=1)
    bench.add("a", [1, 2], sampling(temperature=0.0, max_tokens=6))
    bench.finish()
    assert bench.tokens("a") == plain([1, 2], sampling(temperature=0.0, max_tokens=6))
    assert all(len(chunk.blocks) <= 2 for step in bench.engine.steps for chunk in step)


def test_lower_priority_values_and_earlier_requests_go_first() -> None:
    bench = Bench(max_num_seqs=1, guess=None)
    order: list[str] = []
    for name, priority in [("a", 0), ("b", 5), ("c", -1), ("d", 5)]:
        request = Request(name, [1], sampling(max_tokens=1), priority=priority)
        bench.scheduler.add(request, lambda output, name=name: order.append(name))
    bench.finish()
    assert order == ["c", "a", "b", "d"]


def test_abort_frees_everything_in_every_state() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("running", [1, 2], sampling(max_tokens=50))
    bench.add("waiting", [1, 2], sampling(max_tokens=50))
    bench.step()
    bench.step()
    bench.scheduler.abort("waiting")
    bench.scheduler.abort("running")
    bench.scheduler.abort("unknown")
    assert not bench.scheduler.has_work
    assert bench.scheduler.num_free_blocks == 64
    bench.finish()
    assert isinstance(bench.source, ToySource)
    assert bench.source.closed == [(1, False)]


def test_an_abort_between_plan_and_apply_emits_nothing() -> None:
    bench = Bench(guess=None)
    bench.add("a", [1, 2], sampling())
    bench.scheduler.admit()
    bench.scheduler.views()
    planned = bench.scheduler.plan({})
    bench.scheduler.abort("a")
    verdicts = bench.engine.run([])
    assert verdicts == []
    assert bench.scheduler.apply(planned, [None], StepTimes(0, 0)) == []


def test_blocks_for_another_length_are_not_used() -> None:
    bench = Bench(guess=None)
    bench.add("a", [1, 2], sampling(temperature=0.0))
    bench.step()
    bench.scheduler.views()
    stale = DraftBlock("late", 2, (1, 1, 1))
    planned = bench.scheduler.plan({1: [stale]})
    assert planned[0].chunk.drafts == 0


def test_the_queue_has_a_limit() -> None:
    bench = Bench(max_waiting=2)
    bench.add("a", [1], sampling())
    bench.add("b", [1], sampling())
    with pytest.raises(QueueFullError, match="2 requests are waiting"):
        bench.add("c", [1], sampling())


def test_a_request_id_in_use_is_refused() -> None:
    bench = Bench()
    bench.add("a", [1], sampling())
    with pytest.raises(ValueError, match="already running"):
        bench.add("a", [1], sampling())


def test_budget_must_hold_one_token_of_each_sequence() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens 4"):
        Bench(budget=4, max_num_seqs=8)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), blocks=st.integers(12, 40), seed=st.integers(0, 1000))
def test_any_order_of_add_step_and_abort_leaks_nothing(
    data: st.DataObject, blocks: int, seed: int
) -> None:
    """The toy cache fails the test itself if blocks are shared, lost or stale."""
    bench = Bench(num_blocks=blocks, max_num_seqs=4, budget=24)
    rng = random.Random(seed)
    requests: dict[str, tuple[list[int], Sampling]] = {}
    aborted: set[str] = set()
    for action in data.draw(st.lists(st.sampled_from("aasssssx"), max_size=40)):
        if action == "a":
            name = f"r{len(requests)}"
            prompt = [rng.randrange(4) for _ in range(rng.randrange(1, 20))]
            wanted = sampling(seed=rng.randrange(99), max_tokens=rng.randrange(1, 20))
            requests[name] = (prompt, wanted)
            bench.add(name, prompt, wanted)
        elif action == "x" and requests:
            name = rng.choice(sorted(requests))
            bench.scheduler.abort(name)
            aborted.add(name)
        else:
            bench.step()
    bench.finish()
    assert bench.scheduler.num_free_blocks == blocks
    for name, (prompt, wanted) in requests.items():
        reference = plain(prompt, wanted)
        if name in aborted:
            assert bench.tokens(name) == reference[: len(bench.tokens(name))]
        else:
            assert bench.tokens(name) == reference
