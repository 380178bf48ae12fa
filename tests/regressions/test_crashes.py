"""Crashes and hangs that users of speculative decoders reported: here the request is answered.

Each test's name carries the report; docs/regressions.md lists them all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from speculation.v1 import proposer_pb2

from outrider.scripted_proposer import ScriptedProposer
from proposer_service.proposers.base import Draft, Proposer
from proposer_service.proposers.ngram import NgramProposer
from tests.regressions.bench import Bench, greedy, plain, seeded
from tests.regressions.network import ADDRESS, ProposerServer, Wire
from tests.toy import Toy
from tests.toy_engine import ToySource, oracle, random_guess
from verifier_service.messages import DraftBlock, FinishReason, NoDrafts, Sampling, SequenceView
from verifier_service.proposer_state import LinkState
from verifier_service.scheduler import StepTimes

REPEATING = [1, 2, 3, 1, 2, 3, 1, 2]


def answer_through(server: ProposerServer | ScriptedProposer, **fields: object) -> Bench:
    """Eight requests, all answered as they would be without speculation."""
    bench = Bench(Wire(server), **fields)  # type: ignore[arg-type]
    wanted = {f"r{i}": greedy(24) if i % 2 else seeded(i, 24) for i in range(8)}
    for name, sampling in wanted.items():
        bench.add(name, REPEATING, sampling)
    bench.finish()
    for name, sampling in wanted.items():
        assert bench.tokens(name) == plain(REPEATING, sampling)
    assert bench.scheduler.num_free_blocks == bench.num_blocks
    return bench


def test_vllm_7047_empty_draft_set() -> None:
    """A step in which the n-gram method had no draft died with index 0 out of bounds."""
    server = ProposerServer(NgramProposer(5, 5))
    bench = Bench(Wire(server))
    bench.add("none", [0], seeded(1, 3))
    bench.finish()
    assert bench.tokens("none") == plain([0], seeded(1, 3))
    assert [r.drafted for r in bench.rounds("none")] == [0, 0, 0]
    assert [r.off_reason for r in bench.rounds("none")][1:] == [
        "no draft offered",
        # The last token leaves no room for a draft.
        "no room for a draft before max_tokens or the context limit",
    ]


def test_vllm_7047_blocks_without_ids() -> None:
    """As above, where the proposer sends blocks that hold nothing, beside ones that do."""
    bench = answer_through(
        ScriptedProposer(draft=lambda ids, k: [] if len(ids) % 2 else [ids[-1]] * k)
    )
    drafted = {r.drafted > 0 for name in bench.outputs for r in bench.rounds(name)}
    assert drafted == {True, False}


@pytest.mark.parametrize("seed", range(2))
def test_vllm_14765_ragged_drafts_beside_prefill(seed: int) -> None:
    """Batches of uneven draft lengths read memory that was not theirs; here 16 rows, 0 to K each.

    The toy's cache fails the step that reads or writes a slot of another sequence.
    """
    bench = Bench(ToySource(random_guess, rng=random.Random(seed)), budget=96)
    rng = random.Random(seed)
    wanted = {}
    for i in range(16):
        prompt = [rng.randrange(4) for _ in range(rng.randrange(1, 40))]
        wanted[f"r{i}"] = prompt, seeded(i, rng.randrange(1, 20))
    for name, (prompt, sampling) in wanted.items():
        bench.add(name, prompt, sampling)
        bench.step()
    bench.finish()
    for name, (prompt, sampling) in wanted.items():
        assert bench.tokens(name) == plain(prompt, sampling)
    lengths = {tuple(chunk.drafts for chunk in step) for step in bench.engine.steps}
    assert len(lengths) > 10
    assert any(
        any(chunk.drafts == 0 and len(chunk.ids) > 1 for chunk in step)
        and any(chunk.drafts for chunk in step)
        for step in bench.engine.steps
    )


def of_minus_one(response: proposer_pb2.ProposeResponse) -> Iterable[proposer_pb2.ProposeResponse]:
    for block in response.drafts.blocks:
        block.token_ids[:] = [-1] * len(block.token_ids)
    yield response


@pytest.mark.parametrize("prompt_length", [3, 200])
def test_vllm_40756_drafts_that_are_all_minus_one(prompt_length: int) -> None:
    """On a long sequence every draft was the placeholder -1, then the device faulted."""
    server = ScriptedProposer(draft=lambda ids, k: [1] * k, spoil=of_minus_one)
    wire = Wire(server)
    bench = Bench(wire, budget=32)
    prompt = (REPEATING * 30)[:prompt_length]
    bench.add("a", prompt, seeded(4))
    bench.finish()
    assert bench.tokens("a") == plain(prompt, seeded(4))
    assert all(0 <= token < 4 for chunk in bench.chunks for token in chunk.ids)
    assert wire.state().dropped["out_of_range"] == wire.state().wait_count > 0
    assert bench.acceptance("a").num_draft_tokens == 0


def test_vllm_50021_no_draft_accepted() -> None:
    """An accepted count of 0 was used as index -1: a sequence that never accepts goes on."""
    toy = Toy.target()

    def wrong(view: SequenceView, rng: random.Random) -> Sequence[int]:
        right = int(toy.logits_after(view.ids).argmax())
        return [(right + 1) % 4] * view.max_draft_tokens

    bench = Bench(ToySource(wrong))
    bench.add("a", [1, 2], greedy(30))
    bench.finish()
    assert bench.tokens("a") == plain([1, 2], greedy(30))
    total = bench.acceptance("a")
    assert (total.num_spec_steps, total.num_accepted_draft_tokens) == (28, 0)
    assert {r.emitted for r in bench.rounds("a")} == {1}


def test_vllm_50021_every_draft_accepted() -> None:
    """The other end of the same count: K accepted in every round, K + 1 emitted."""
    bench = Bench(ToySource(oracle(Toy.target())))
    bench.add("a", [1, 2], greedy(31))
    bench.finish()
    assert bench.tokens("a") == plain([1, 2], greedy(31))
    assert [(r.accepted, r.emitted) for r in bench.rounds("a")] == [(0, 1), *[(4, 5)] * 6]


@pytest.mark.parametrize("limit", [9, 11, 16])
def test_vllm_57941_context_of_the_drafter_is_shorter(limit: int) -> None:
    """A request longer than the drafter's context took the engine down: it goes on plainly."""
    server = ProposerServer(NgramProposer(1, 3), context_limit=limit)
    wire = Wire(server)
    bench = Bench(wire)
    bench.add("long", REPEATING, greedy(40))
    bench.add("longer", REPEATING * 5, greedy(10))
    bench.finish()
    assert bench.tokens("long") == plain(REPEATING, greedy(40))
    assert bench.tokens("longer") == plain(REPEATING * 5, greedy(10))
    held = 0
    for step in server.steps:
        for update in step.updates:
            ids = len(update.open.token_ids) + len(update.commit.token_ids)
            start = update.open.offset + update.commit.base_length
            held = max(held, start + ids + update.max_draft_tokens)
    assert 0 < held <= limit
    assert wire.state().unserved == {"context_limit": 2}
    assert wire.state().state is LinkState.CONNECTED
    assert server.session is not None
    assert len(server.session) == 0


def prefill_steps(bench: Bench) -> list[int]:
    """Prompt tokens of each step that computed some of request `long`."""
    return [
        len(chunk.ids) - chunk.drafts
        for step in bench.engine.steps
        for chunk in step
        if chunk.start + len(chunk.ids) - chunk.drafts <= 100 and len(chunk.ids) > 5
    ]


def test_vllm_52922_budgets_of_target_and_drafts_are_separate() -> None:
    """Draft tokens ate the prompt's token budget: a prompt takes the same chunks with drafts."""
    benches = []
    for source in (NoDrafts(), ToySource(oracle(Toy.target()))):
        bench = Bench(source, budget=24, max_num_seqs=8)
        for i in range(3):
            bench.add(f"r{i}", [i], greedy(60))
        bench.step()
        bench.add("long", [1, 2, 3, 0] * 25, greedy(5))
        bench.finish()
        benches.append(bench)
    without, with_drafts = benches
    assert prefill_steps(with_drafts) == prefill_steps(without)
    assert sum(prefill_steps(without)) == 100
    assert max(sum(len(c.ids) for c in step) for step in with_drafts.engine.steps) <= 24
    assert any(chunk.drafts for chunk in with_drafts.chunks)


def test_vllm_52922_a_prompt_longer_than_the_targets_budget_reaches_the_proposer_whole() -> None:
    """The other way round: the target's 16 tokens a step do not cut what the proposer reads."""
    server = ProposerServer(NgramProposer(2, 5))
    bench = Bench(Wire(server), budget=32)
    prompt = REPEATING * 20
    bench.add("a", prompt, greedy(5))
    bench.finish()
    opens = [u.open for step in server.steps for u in step.updates if u.HasField("open")]
    assert [list(o.token_ids) for o in opens] == [prompt]


def test_llamacpp_9949_drafts_up_to_the_last_position() -> None:
    """The example crashed at a sequence's end: a request that fills the cache to its last slot."""
    bench = Bench(ToySource(oracle(Toy.target())), num_blocks=4, block_size=4, k=8, max_num_seqs=1)
    bench.add("a", [1, 2, 3], greedy(13))
    bench.finish()
    assert bench.tokens("a") == plain([1, 2, 3], greedy(13))
    assert bench.reason("a") is FinishReason.LENGTH
    assert max(c.start + len(c.ids) for c in bench.chunks) <= 16


def test_llamacpp_27306_no_drafts_while_the_prompt_is_prefilled() -> None:
    """The drafter ran after every prefill chunk: device lost, and 38 % slower."""
    server = ProposerServer(NgramProposer(2, 5))
    wire = Wire(server)
    bench = Bench(wire, budget=32)
    bench.add("a", REPEATING * 30, greedy(9))
    while not bench.outputs["a"]:
        bench.step()
        wire.settle()
    chunks = len(bench.engine.steps)
    assert chunks == 8
    asked = [u.max_draft_tokens for step in server.steps for u in step.updates]
    # Told once, so that it can read the prompt meanwhile; asked for nothing.
    assert asked == [0]
    bench.finish()
    assert sum(u.max_draft_tokens > 0 for step in server.steps for u in step.updates) > 0


class Failing(Proposer):
    """Fails on every text of odd length."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        self.lengths[sequence_id] = 0
        self.extend(sequence_id, ids)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self.lengths[sequence_id] += len(ids)

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        if self.lengths[sequence_id] % 2:
            raise RuntimeError("failed to process speculative batch")
        return Draft((1,) * max_draft_tokens)

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[object]:  # type: ignore[override]
        return ()

    def close(self, sequence_id: int, finished: bool) -> None:
        del self.lengths[sequence_id]


def test_lmstudio_610_a_method_that_fails_fails_no_request() -> None:
    """`failed to process speculative batch` was a 500: it costs the drafts of that sequence."""
    method = Failing()
    server = ProposerServer(method)
    bench = answer_through(server)
    assert isinstance(bench.source, Wire)
    assert bench.source.state().faults > 0
    assert bench.source.state().state is LinkState.CONNECTED
    assert method.lengths == {}


def test_tensorrtllm_2798_a_drafter_that_never_answers_stops_nothing() -> None:
    """The executor hung at its start with a draft model: answers do not wait for a proposer."""
    wire = Wire(ProposerServer(NgramProposer(2, 5)))
    wire.network.kill(ADDRESS)
    bench = Bench(wire)
    bench.add("a", REPEATING, greedy(20))
    begun = wire.network.now()
    bench.finish()
    assert bench.tokens("a") == plain(REPEATING, greedy(20))
    assert wire.network.now() == begun


def test_tensorrtllm_2684_a_drafter_that_is_ready_late_is_used_then() -> None:
    """A two-model recipe never became ready: the later one joins while requests run."""
    wire = Wire(ProposerServer(NgramProposer(1, 3)))
    wire.network.kill(ADDRESS)
    bench = Bench(wire)
    bench.add("a", REPEATING, greedy(60))
    for _ in range(5):
        bench.step()
    assert {r.drafted for r in bench.rounds("a")} == {0}
    wire.network.serve(ADDRESS, ProposerServer(NgramProposer(1, 3)))
    wire.settle(3.0)
    bench.finish()
    assert bench.tokens("a") == plain(REPEATING, greedy(60))
    assert bench.acceptance("a").num_accepted_draft_tokens > 10


@pytest.mark.parametrize("when", ["asked", "verified"])
def test_sglang_24283_an_abort_with_a_block_in_flight(when: str) -> None:
    """One request's trouble killed every request in flight: an abort disturbs no other."""
    wire = Wire(ProposerServer(NgramProposer(1, 3)))
    bench = Bench(wire)
    for name in ("gone", "stays"):
        bench.add(name, REPEATING, greedy(30))
    for _ in range(3):
        bench.step()
    before = bench.tokens("gone")
    if when == "asked":
        views, closed = bench.scheduler.views()
        wire.send(views, closed)
        bench.scheduler.abort("gone")
        bench.verify(bench.scheduler.plan(wire.collect()))
    else:
        planned = bench.ask()
        assert all(part.chunk.drafts for part in planned)
        verdicts = bench.engine.run([part.chunk for part in planned])
        bench.scheduler.abort("gone")
        for sink, output in bench.scheduler.apply(planned, verdicts, StepTimes(1, 2)):
            sink(output)
    bench.finish()
    assert bench.tokens("gone") == before
    assert bench.tokens("stays") == plain(REPEATING, greedy(30))
    assert bench.scheduler.num_free_blocks == bench.num_blocks
    assert wire.state().dropped == {}


def test_sglang_27462_blocks_twice_late_and_of_another_state() -> None:
    """A malformed message could stop the control thread: each is dropped and counted."""

    def spoil(
        response: proposer_pb2.ProposeResponse,
    ) -> Iterable[proposer_pb2.ProposeResponse | bytes]:
        other = proposer_pb2.ProposeResponse()
        other.CopyFrom(response)
        for block in other.drafts.blocks:
            block.base_length += 1
        yield from (other, response, response, b"\xff\xff")

    server = ScriptedProposer(draft=lambda ids, k: [1] * k, spoil=spoil)
    bench = answer_through(server)
    assert isinstance(bench.source, Wire)
    dropped = bench.source.state().dropped
    assert set(dropped) == {"stale", "duplicate", "unparsable"}
    assert bench.source.state().state is LinkState.CONNECTED


def test_sglang_27462_a_late_block_is_not_verified_in_a_later_step() -> None:
    """A block for a length that has passed never reaches the target."""
    bench = Bench(k=4)
    bench.add("a", [1, 2], greedy(10))
    bench.step()
    bench.scheduler.views()
    late = DraftBlock("late", 2, (1, 1, 1))
    early = DraftBlock("early", 4, (1, 1, 1))
    (part,) = bench.scheduler.plan({1: [late, early]})
    assert part.chunk.drafts == 0
    bench.verify([part])
    bench.finish()
    assert bench.tokens("a") == plain([1, 2], greedy(10))


@pytest.mark.parametrize("restarts", [1, 7])
def test_club_3090_1052_drafter_restarts_while_requests_run(restarts: int) -> None:
    """Speculation stopped for good after a fault: each restart is found and used again."""
    wire = Wire(ProposerServer(NgramProposer(1, 3)))
    bench = Bench(wire)
    bench.add("a", REPEATING, greedy(150))
    served: list[ProposerServer] = []
    for _ in range(restarts):
        bench.step()
        wire.network.kill(ADDRESS)
        bench.step()
        served.append(ProposerServer(NgramProposer(1, 3)))
        wire.network.serve(ADDRESS, served[-1])
        wire.settle(3.0)
        bench.step()
    bench.finish()
    assert bench.tokens("a") == plain(REPEATING, greedy(150))
    assert wire.state().reconnects == restarts
    assert all(server.steps for server in served)
    assert bench.rounds("a")[-2].drafted == 4


@pytest.mark.parametrize("sampling", [greedy(18), seeded(3, 18)])
def test_vllm_40756_preemption_in_mid_draft(sampling: Sampling) -> None:
    """Resumed sequences had drafts of -1: here each is recomputed and drafted for again."""
    server = ProposerServer(NgramProposer(1, 3))
    wire = Wire(server)
    bench = Bench(wire, num_blocks=6, block_size=4, max_num_seqs=3)
    for name in "abc":
        bench.add(name, [1, 2, 1, 2], sampling)
    bench.finish()
    for name in "abc":
        assert bench.tokens(name) == plain([1, 2, 1, 2], sampling)
    assert bench.scheduler.num_preemptions > 0, "the test does not test"
    assert any(chunk.drafts for chunk in bench.chunks)
    assert all(bench.acceptance(name).num_spec_steps > 2 for name in "abc")
    state = wire.state()
    assert (state.faults, state.dropped) == (0, {})
    assert bench.scheduler.num_free_blocks == 6
