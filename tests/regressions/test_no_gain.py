"""Speculation that made decoding slower: the controller, on the loads that users reported.

Times are simulated, so no machine decides. Each test's name carries the report;
docs/regressions.md lists them all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proposer_service.proposers.ngram import NgramProposer
from tests.regressions.bench import Bench, greedy, plain
from tests.regressions.network import ADDRESS, DEADLINE_S, ProposerServer, Wire
from tests.toy import Toy
from tests.toy_engine import ToySource, oracle
from tests.verifier_service.controller_simulator import (
    Text,
    cpu,
    expected_rate,
    flat,
    linear,
    simulate,
    steady,
)
from verifier_service.controller import Controller
from verifier_service.costs import CostTable

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


def saturated(rows: int) -> float:
    """A GPU past its knee from 16 rows on: 5.2 ms below, 0.3 ms for each further row."""
    return 5.2e-3 + 3e-4 * max(rows - 16, 0)


@pytest.mark.parametrize(
    ("acceptance", "batch", "cost", "wait"),
    [
        pytest.param(0.3, 8, cpu, 0.0, id="vllm_8439_ngram_61_against_69_tokens"),
        pytest.param(0.5, 1, flat, 0.004, id="vllm_15025_draft_model_of_135m_for_1.7b"),
        pytest.param(0.2, 4, linear, 0.0, id="vllm_21278_worse_with_every_k"),
        pytest.param(0.7, 32, linear, 0.0, id="vllm_16258_pareto_worse_at_70_percent"),
        pytest.param(0.4, 16, saturated, 0.0, id="vllm_ascend_12890_tpot_45_to_60_ms"),
        pytest.param(0.1, 1, flat, 0.002, id="llamacpp_10664_a100_and_m2"),
        pytest.param(0.6, 1, flat, 0.02, id="llamacpp_3649_draft_sampling_dominates"),
    ],
)
def test_never_slower_than_plain(
    acceptance: float, batch: int, cost: Callable[[int], float], wait: float
) -> None:
    """Each id is a report of speculation that lost; drafts that do not pay are not verified.

    What is allowed is what looking costs: the first steps, and from then on the probes' share.
    """
    load = steady(acceptance)
    result = simulate(load, cost, batch=batch, steps=300, wait=lambda _step: wait)
    without = expected_rate(load, cost, batch=batch, drafts=0)
    assert result.rate() >= 0.9 * without
    assert result.rate(100) >= 0.97 * without


def test_vllm_50851_a_gain_at_one_client_is_no_loss_at_many() -> None:
    """2.1 times faster at 1 client and 0.77 at 8 on one build: the loss is refused."""
    load = steady(0.75)
    gain = {}
    for batch in (1, 8, 64):
        rate = simulate(load, saturated, batch=batch, steps=250).rate()
        gain[batch] = rate / expected_rate(load, saturated, batch=batch, drafts=0)
    assert gain[1] > 2.1
    assert min(gain.values()) >= 0.97
    # What verifying all of them would have been.
    always = expected_rate(load, saturated, batch=64, drafts=8)
    assert always < 0.9 * expected_rate(load, saturated, batch=64, drafts=0)


def test_vllm_49548_a_k_of_zero_collapses_nothing() -> None:
    """232 tokens a second became 24 when the table reached K = 0, at 8 requests."""

    def load(step: int, _sequence: int) -> dict[str, Text]:
        return {"ngram": Text(0.9 if step < 150 or step >= 450 else 0.0)}

    result = simulate(load, cpu, batch=8, steps=700, wait=lambda _step: 0.001)
    without = expected_rate(steady(0.0), cpu, batch=8, drafts=0)
    assert result.drafted_in(250, 450) < 1.0
    assert result.rate(250, 450) >= 0.97 * without
    # And K comes back where drafts are right again.
    assert result.rate(600) >= 1.3 * without


def test_vllm_49548_k_zero_runs_the_very_steps_of_plain_decoding() -> None:
    """Merely enabling it with K = 0 was a tax of 6 to 21 %: nobody is asked, nothing is wider."""
    source = ToySource(oracle(Toy.target()))
    off, without = Bench(source, k=0), Bench(k=0)
    for bench in (off, without):
        for i in range(8):
            bench.add(f"r{i}", [i % 4, *PROMPT], greedy(12))
        bench.finish()
    assert off.engine.steps == without.engine.steps
    assert source.seen == set()
    assert source.closed == []


def test_vllm_49548_requests_without_drafts_pay_for_no_others() -> None:
    """K = 0 of one request beside speculating ones: its rounds are one token wide."""
    bench = Bench(ToySource(oracle(Toy.target())))
    bench.add("off", PROMPT, greedy(20), num_speculative_tokens=0)
    bench.add("on", PROMPT, greedy(20))
    bench.finish()
    assert {(r.drafted, r.emitted) for r in bench.rounds("off")} == {(0, 1)}
    assert bench.tokens("off") == bench.tokens("on") == plain(PROMPT, greedy(20))
    assert len(bench.rounds("on")) < len(bench.rounds("off")) / 3


@pytest.mark.parametrize("k", [1, 4, 8])
def test_llamacpp_12968_the_server_drafts_as_many_as_were_asked_for(k: int) -> None:
    """The server drafted fewer tokens than the simple example: here K in every round."""
    wire = Wire(ProposerServer(NgramProposer(1, 4)), k=k)
    bench = Bench(wire, k=k)
    # The toy's greedy text repeats itself long before; each lookup then finds K tokens.
    bench.add("a", PROMPT, greedy(120))
    bench.finish()
    rounds = bench.rounds("a")[-12:]
    assert [r.offered for r in rounds[:-2]] == [k] * 10
    assert [r.drafted for r in rounds[:-2]] == [k] * 10
    assert [r.emitted for r in rounds[:-2]] == [k + 1] * 10


def test_sglang_23005_drafts_made_ahead_are_not_waited_for() -> None:
    """Full overlap showed in the trace, and the time for a token stayed: a wait is a wait.

    The network takes 4 virtual ms each way; a round whose draft was prepared costs none of them.
    """
    wire = Wire(ProposerServer(NgramProposer(1, 4)))
    wire.network.endpoint(ADDRESS).delay = 0.004
    wire.settle(0.05)
    bench = Bench(wire)
    bench.add("a", PROMPT, greedy(120))
    waits, hits = [], []
    while bench.scheduler.has_work:
        # The target's forward, while look-ahead arrives.
        wire.settle(0.02)
        before = wire.network.now()
        planned = bench.ask()
        waits.append(wire.network.now() - before)
        bench.verify(planned)
        hits.append(bool(bench.rounds("a") and bench.rounds("a")[-1].lookahead_hit))
    assert sum(hits) > 5
    assert {wait for wait, hit in zip(waits, hits, strict=True) if hit} == {0.0}
    assert 0.0 < max(waits) < DEADLINE_S
    assert bench.tokens("a") == plain(PROMPT, greedy(120))


def test_transformers_32366_each_committed_token_is_told_once() -> None:
    """Assisted decoding was slow: state was rebuilt each round; a commit has new ids only."""
    server = ProposerServer(NgramProposer(1, 4))
    bench = Bench(Wire(server))
    bench.add("a", PROMPT * 8, greedy(60))
    bench.finish()
    updates = [update for step in server.steps for update in step.updates]
    assert sum(update.HasField("open") for update in updates) == 1
    assert max(len(update.commit.token_ids) for update in updates) <= 5
    sent = sum(len(u.commit.token_ids) + len(u.open.token_ids) for u in updates)
    assert sent <= len(PROMPT) * 8 + 60


def test_vllm_50851_the_reason_for_no_drafts_has_numbers() -> None:
    """Users could not tell why it was off: price and expectation are in the state."""
    control = Controller(8, CostTable.from_profile({1: 0.02, 2: 0.04, 64: 1.28}))
    simulate(steady(0.3), linear, batch=4, steps=200, controller=control)
    state = control.state()
    assert state.startswith("off: verifying does not pay: 1 draft costs ")
    assert "needed" in state
