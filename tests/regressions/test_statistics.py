"""Acceptance that fell, and figures that did not mean what they said.

Each test's name carries the report; docs/regressions.md lists them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from speculation.v1 import verifier_pb2 as pb

from gateway.metrics import VerifierSnapshot
from outrider.acceptance import Acceptance, speculative_decoding_metrics
from proposer_service.proposers.base import Proposer
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.proposers.suffix_options import SuffixOptions
from tests.regressions.bench import Bench, greedy, plain, seeded
from tests.regressions.network import ProposerServer, Wire
from tests.toy import Toy
from tests.toy_engine import ToySource, oracle, random_guess
from verifier_service.accounting import Ledger
from verifier_service.messages import FinishReason, SequenceView

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
METHODS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NgramProposer(1, 4),
    "suffix": lambda: SuffixProposer(SuffixOptions(max_cached_requests=0)),
}


@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_sglang_11572_rates_stay_within_their_range(data: st.DataObject, seed: int) -> None:
    """A rate above 1 was shown: whatever stops a request or aborts it, the sums agree."""
    bench = Bench(ToySource(random_guess, rng=random.Random(seed)))
    for i in range(4):
        stop = data.draw(st.frozensets(st.integers(0, 3), max_size=2))
        sampling = seeded(seed + i, data.draw(st.integers(1, 15)), stop_token_ids=stop)
        bench.add(f"r{i}", [i % 4, 1], sampling)
    for _ in range(data.draw(st.integers(0, 6))):
        bench.step()
    bench.scheduler.abort("r0")
    bench.finish()
    ledger = Ledger(bench.k)
    emitted = 0
    for name, outputs in bench.outputs.items():
        account = ledger.open(2, detailed=True)
        for output in outputs:
            account.add(len(output.token_ids), output.round)
        _check(account.acceptance)
        steps = account.acceptance
        assert steps.per_step_accepted == [r.accepted for r in bench.rounds(name) if r.drafted]
        assert account.completion_tokens == len(bench.tokens(name))
        emitted += account.completion_tokens
    # Tokens are counted once: in the request and, by the same call, in the total.
    assert ledger.generation_tokens == emitted
    assert ledger.acceptance.num_accepted_draft_tokens <= emitted
    _check(ledger.acceptance)


def _check(total: Acceptance) -> None:
    assert 0.0 <= total.draft_acceptance_rate <= 1.0
    assert 1.0 <= total.mean_acceptance_length <= total.num_spec_tokens + 1
    assert sum(total.histogram) == total.num_spec_steps
    weighted = sum(count * accepted for accepted, count in enumerate(total.histogram))
    assert weighted == sum(total.accepted_per_position) == total.num_accepted_draft_tokens
    assert sum(total.proposed_per_position) == total.num_draft_tokens
    assert all(0.0 <= rate <= 1.0 for rate in total.per_position_rates())
    pairs = zip(total.accepted_per_position, total.proposed_per_position, strict=True)
    assert all(accepted <= proposed for accepted, proposed in pairs)
    falling = total.accepted_per_position
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("place", range(6))
def test_vllm_56101_tokens_behind_the_end_count_for_nothing(place: int) -> None:
    """Drafts behind end-of-sequence were counted as accepted; the stop token is the last that is.

    A block of five drafts, all right, whose draft `place` (or the target's own token) is the end.
    """
    # One context after another in a circle, so that each token of the block occurs once.
    toy = _circle(8)
    bench = Bench(ToySource(oracle(toy)), k=5, toy=toy)
    bench.add("a", [7, 0], greedy(30, stop_token_ids=frozenset({2 + place})))
    bench.finish()
    assert bench.tokens("a") == [1, *range(2, 3 + place)]
    assert bench.reason("a") is FinishReason.STOP
    (_, last) = bench.rounds("a")
    assert (last.drafted, last.accepted, last.emitted) == (5, min(place + 1, 5), place + 1)
    total = bench.acceptance("a")
    assert total.mean_acceptance_length == 1 + min(place + 1, 5)
    assert total.draft_acceptance_rate == min(place + 1, 5) / 5
    assert (sum(total.histogram), total.num_spec_steps) == (1, 1)


def _circle(size: int) -> Toy:
    """After id i comes i + 1, whatever was before."""
    logits = torch.zeros(size * size, size, dtype=torch.float64)
    for context in range(size * size):
        logits[context, (context % size + 1) % size] = 9.0
    return Toy(size, logits)


def test_llamacpp_25818_the_first_position_is_not_always_right() -> None:
    """The first position's rate was 1.0 whatever was drafted."""
    toy = Toy.target()

    def wrong_first(view: SequenceView, rng: random.Random) -> Sequence[int]:
        right = oracle(toy)(view, rng)
        return [(right[0] + 1) % 4, *right[1:]] if len(view.ids) % 2 else right

    bench = Bench(ToySource(wrong_first))
    bench.add("a", PROMPT, greedy(80))
    bench.finish()
    total = bench.acceptance("a")
    wrong = total.histogram[0]
    assert wrong > 0
    assert total.per_position_rates()[0] == (total.num_spec_steps - wrong) / total.num_spec_steps
    # Over steps that reached the position: one that fell at the first counts at each it drafted.
    assert total.per_position_rates()[1] == total.per_position_rates()[0]
    shown = speculative_decoding_metrics(total.to_proto())
    assert shown["draft_acceptance_rate"] == total.draft_acceptance_rate < 1.0


def _server(name: str) -> ProposerServer:
    """Suffix decoding that looks ahead leaves guesses out that rest on one token: all four here."""
    return ProposerServer(METHODS[name](), lookahead=name != "suffix")


# (steps, accepted drafts) of 8 greedy and of 8 sampled requests of 40 tokens each.
GOLDEN = {"ngram": ((84, 226), (190, 115)), "suffix": ((84, 226), (195, 109))}


@pytest.mark.parametrize("name", METHODS)
def test_llamacpp_23544_acceptance_does_not_fall_from_build_to_build(name: str) -> None:
    """Acceptance went from .64 to .24 with a new build: on fixed texts it is what it was."""
    bench = Bench(Wire(_server(name)))
    for i in range(16):
        prompt = [(i >> shift) % 4 for shift in range(4)] + PROMPT
        bench.add(f"r{i}", prompt, seeded(i, 40) if i % 2 else greedy(40))
    bench.finish()
    for kind, (steps, accepted) in enumerate(GOLDEN[name]):
        total = Acceptance(bench.k)
        for i in range(kind, 16, 2):
            total.merge(bench.acceptance(f"r{i}"))
        assert total.num_accepted_draft_tokens >= accepted
        assert total.num_spec_steps <= steps


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("parallel", [4, 16, 24])
def test_llamacpp_27117_acceptance_is_the_same_at_16_sequences(name: str, parallel: int) -> None:
    """Fine at 4 parallel sequences, collapsed at 16: each has the rounds it has alone."""
    requests = {f"r{i}": ([i % 4, *PROMPT], seeded(i, 24)) for i in range(parallel)}
    together = Bench(Wire(_server(name)))
    for request, (prompt, sampling) in requests.items():
        together.add(request, prompt, sampling)
    together.finish()
    assert max(len(step) for step in together.engine.steps) == parallel
    total = Acceptance(together.k)
    for request, (prompt, sampling) in requests.items():
        total.merge(together.acceptance(request))
        if parallel > 4 and request not in ("r0", "r1", f"r{parallel - 1}"):
            continue
        alone = Bench(Wire(_server(name)))
        alone.add(request, prompt, sampling)
        alone.finish()
        assert together.acceptance(request) == alone.acceptance(request)
        assert together.tokens(request) == alone.tokens(request)
    assert total.num_accepted_draft_tokens > parallel


def test_vllm_53436_near_ties_fall_the_same_way_in_every_run() -> None:
    """At temperature 0 acceptance flipped on near ties: equal logits take the lowest id, always.

    Every context has two best tokens, exactly equal; batches, drafts and K differ.
    """
    table = torch.zeros(16, 4, dtype=torch.float64)
    for context in range(16):
        table[context, (context + 1) % 4] = table[context, (context * 3 + 2) % 4] = 2.0
    toy = Toy(4, table)
    reference = Bench(k=0, toy=toy)
    reference.add("a", [1, 2], greedy(30))
    reference.finish()
    lowest = [1, 2]
    for _ in range(30):
        lowest.append(int(toy.logits_after(lowest).argmax()))
    assert reference.tokens("a") == lowest[2:]
    runs = []
    for parallel, k in ((1, 4), (9, 4), (9, 4), (3, 2)):
        bench = Bench(ToySource(oracle(toy)), k=k, toy=toy)
        for i in range(parallel):
            bench.add(f"r{i}", [1, 2], greedy(30))
        bench.finish()
        for name in bench.outputs:
            assert bench.tokens(name) == reference.tokens("a")
            assert bench.acceptance(name).draft_acceptance_rate == 1.0
        runs.append(bench.acceptance("r0"))
    assert runs[0] == runs[1] == runs[2]


def test_vllm_41916_no_timestamp_looks_like_a_counter() -> None:
    """A benchmark summed everything that began like the counter, creation times too."""
    totals = Acceptance(2, 3, 6, 4, [1, 0, 2], [2, 2], [3, 3]).to_proto()
    info = pb.GetInfoResponse(model="m", num_speculative_tokens=2, acceptance=totals)

    class Place:
        index, address, problem = 0, "unix:v", ""

    registry = CollectorRegistry(auto_describe=False)
    registry.register(VerifierSnapshot([Place()], [(Place(), info)]))  # type: ignore[list-item]
    samples = [
        line
        for line in generate_latest(registry).decode().splitlines()
        if line.startswith("vllm:spec_decode_")
    ]
    summed: dict[str, float] = {}
    for line in samples:
        name, value = line.split("{")[0], float(line.rsplit(" ", 1)[1])
        summed[name] = summed.get(name, 0.0) + value
    assert summed == {
        "vllm:spec_decode_num_drafts_total": 3.0,
        "vllm:spec_decode_num_draft_tokens_total": 6.0,
        "vllm:spec_decode_num_accepted_tokens_total": 4.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total": 4.0,
    }


def test_vllm_44487_one_request_that_loops_is_told_from_one_that_does_not() -> None:
    """Per-request acceptance as a sign: near 1 where the text loops, near 0 where it is noise."""
    bench = Bench(Wire(ProposerServer(NgramProposer(1, 4))))
    bench.add("loops", PROMPT, greedy(60))
    bench.add("noise", PROMPT, replace(seeded(1, 60), temperature=2.0))
    bench.finish()
    assert bench.acceptance("loops").draft_acceptance_rate > 0.8
    assert bench.acceptance("noise").draft_acceptance_rate < 0.4
    assert bench.tokens("noise") == plain(PROMPT, replace(seeded(1, 60), temperature=2.0))
