"""Memory that speculation held without anybody knowing: state per sequence ends with the sequence.

Each test's name carries the report; docs/regressions.md lists them all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from proposer_service.proposers.base import Proposer
from proposer_service.proposers.ngram import NgramProposer
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.proposers.suffix_options import SuffixOptions
from proposer_service.sequences import sequence_numbers
from tests.regressions.bench import Bench, greedy, seeded
from tests.regressions.network import ADDRESS, ProposerServer, Wire
from tests.toy_engine import ToySource, random_guess

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
METHODS: dict[str, Callable[[], Proposer]] = {
    "ngram": lambda: NgramProposer(2, 5),
    "suffix": lambda: SuffixProposer(SuffixOptions(max_cached_requests=0)),
}


def size(part: object) -> int:
    """Bytes of all state that hangs on `part`."""
    return len(pickle.dumps(part))


def fresh_size(method: Proposer) -> int:
    """As it is without sequences; what depends on lengths only is made by the first ones."""
    bench, _ = serve(method, 2)
    bench.finish()
    assert isinstance(bench.source, Wire)
    bench.source.settle()
    return size(method)


def serve(method: Proposer, requests: int) -> tuple[Bench, ProposerServer]:
    server = ProposerServer(method)
    bench = Bench(Wire(server))
    for i in range(requests):
        bench.add(f"r{i}", PROMPT, seeded(i, 12))
    return bench, server


@pytest.mark.parametrize("name", METHODS)
def test_vllm_metal_447_a_drafters_store_is_empty_after_the_last_close(name: str) -> None:
    """The drafter's own store was never budgeted: what a sequence took is given back."""
    method = METHODS[name]()
    fresh = fresh_size(method)
    bench, server = serve(method, 12)
    bench.begin()
    assert size(method) > fresh + 1000
    bench.finish()
    assert isinstance(bench.source, Wire)
    bench.source.settle()
    assert server.session is not None
    assert len(server.session) == 0
    assert size(method) == fresh


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("how", ["abort", "kill"])
def test_vllm_metal_447_a_drafters_store_is_empty_after_a_kill(name: str, how: str) -> None:
    """Clients that leave, and verifiers that die without a close, leave nothing behind."""
    method = METHODS[name]()
    fresh = fresh_size(method)
    bench, server = serve(method, 6)
    bench.begin()
    assert isinstance(bench.source, Wire)
    if how == "abort":
        for i in range(6):
            bench.scheduler.abort(f"r{i}")
        bench.finish()
        bench.source.settle()
    else:
        bench.source.network.break_streams(ADDRESS)
    assert server.session is None or len(server.session) == 0
    assert size(method) == fresh


def test_vllm_metal_447_outputs_kept_for_other_requests_are_bounded() -> None:
    """The store that outlives requests, of the suffix method, holds as many as it was told to."""
    method = SuffixProposer(SuffixOptions(max_cached_requests=4))
    sizes = []
    for i in range(40):
        method.open(i, PROMPT, len(PROMPT), "")
        method.extend(i, [i % 7, i % 5, i % 3] * 8)
        method.close(i, True)
        sizes.append(size(method))
    assert max(sizes[20:]) <= 1.1 * max(sizes[4:20])


def test_vllm_metal_447_the_verifier_forgets_what_it_learnt_of_a_sequence() -> None:
    """Estimates are kept per sequence: a server of a million requests must not keep them."""
    bench = Bench(ToySource(random_guess), adaptive=True)
    bench.add("first", PROMPT, seeded(0, 12))
    bench.finish()
    once = size(bench.controller)
    for i in range(20):
        bench.add(f"r{i}", PROMPT, seeded(i, 6))
        bench.finish()
    # Sums grow in digits, not in entries.
    assert size(bench.controller) <= once + 200
    assert bench.scheduler.num_free_blocks == bench.num_blocks


@pytest.mark.parametrize("vocabulary", [4, 128_256])
def test_vllm_35461_no_logits_of_drafts_are_kept_or_sent(vocabulary: int) -> None:
    """Draft logits of the whole vocabulary were cached: coupled drafts are ids, on any vocabulary.

    32 sequences and K = 8 fit into 3 kB, where full distributions would take 131 MB.
    """
    server = ProposerServer(NgramProposer(1, 3), lookahead=False)
    wire = Wire(server, k=8, vocabulary_size=vocabulary)
    bench = Bench(wire, k=8)
    for i in range(32):
        bench.add(f"r{i}", PROMPT, greedy(90))
    bench.begin()
    # Until each text repeats itself.
    for _ in range(6):
        bench.step()
    wire.network.endpoint(ADDRESS).held = True
    views, closed = bench.scheduler.views()
    wire.send(views, closed)
    wire.settle()
    sent = [len(data) for _, data in wire.network.endpoint(ADDRESS).pile]
    wire.network.release(ADDRESS)
    blocks = wire.collect()
    assert len(blocks) == 32
    assert all(len(block.token_ids) == 8 and not block.q for (block,) in blocks.values())
    assert len(sent) == 1
    assert sent[0] < 3000


def test_vllm_42109_one_verifiers_sequences_take_no_room_of_anothers() -> None:
    """Tenants of one drafter threw out each other's cache: a full one leaves others their room."""
    method = NgramProposer(1, 3)
    numbers = sequence_numbers()
    server = ProposerServer(method, numbers=numbers, max_sequences=2)
    wire = Wire(server)
    bench = Bench(wire)
    for i in range(5):
        bench.add(f"r{i}", PROMPT, greedy(30))
    other = ProposerServer(method, numbers=numbers, max_sequences=2)
    neighbour = Bench(Wire(other))
    neighbour.add("a", PROMPT, greedy(30))
    for running in (bench, neighbour, bench, neighbour):
        running.begin()
        running.step()
    assert server.session is not None and other.session is not None
    assert (len(server.session), len(other.session)) == (2, 1)
    drafted = {name: bench.acceptance(name).num_draft_tokens > 0 for name in bench.outputs}
    assert sum(drafted.values()) == 2
    assert neighbour.acceptance("a").num_draft_tokens > 0
    # Counted here, rather than refused there in every step.
    assert (wire.state().unserved, wire.state().faults) == ({"over_capacity": 3}, 0)
