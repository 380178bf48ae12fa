"""Any order of add, step, abort and preempt: nothing lost, nothing shared that should not be, and
every answer is what an uncached, undrafted, undisturbed run gives."""

from __future__ import annotations

from collections import Counter
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.verifier_service.scheduler_bench import Bench, plain, sampling
from verifier_service.messages import Sampling

# Beginnings that many prompts share, so that there is something to find.
BEGINNINGS = ((0, 1, 2, 3, 0, 2, 1, 3, 3), (0, 1, 2, 3, 1, 1), (2,))
BLOCKS = 11


@cache
def alone(prompt: tuple[int, ...], wanted: Sampling) -> tuple[int, ...]:
    return tuple(plain(prompt, wanted))


class Requests(RuleBasedStateMachine):
    neighbours = False

    @initialize(k=st.sampled_from([0, 1, 4]), budget=st.sampled_from([4, 9, 40]))
    def start(self, k: int, budget: int) -> None:
        self.bench = Bench(
            k=k,
            num_blocks=BLOCKS,
            block_size=4,
            max_num_seqs=4,
            budget=budget,
            neighbours=self.neighbours,
        )
        self.wanted: dict[str, tuple[tuple[int, ...], Sampling]] = {}
        self.aborted: set[str] = set()
        self.salts: dict[str, str] = {}

    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        rest=st.lists(st.integers(0, 3), max_size=4),
        seed=st.integers(0, 1),
        max_tokens=st.integers(1, 14),
        salt=st.sampled_from(["", "x"]),
        priority=st.integers(0, 2),
        temperature=st.sampled_from([0.0, 1.0]),
        scored=st.booleans(),
    )
    def add(
        self,
        beginning: tuple[int, ...],
        rest: list[int],
        seed: int,
        max_tokens: int,
        salt: str,
        priority: int,
        temperature: float,
        scored: bool,
    ) -> None:
        name = f"r{len(self.wanted)}"
        prompt = (*beginning, *rest)
        wanted = sampling(
            seed=seed,
            max_tokens=max_tokens,
            temperature=temperature,
            prompt_logprobs=0 if scored else -1,
        )
        self.wanted[name] = (prompt, wanted)
        self.bench.add(name, prompt, wanted, salt=salt, priority=priority)
        self.salts[name] = salt

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.bench.step()

    @precondition(lambda self: self.bench.scheduler._queues.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        running = self.bench.scheduler._queues.running
        index = data.draw(st.integers(0, len(running) - 1))
        self.bench.scheduler.preempt(running[index].request.request_id)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        self.aborted.add(name)
        self.bench.scheduler.abort(name)

    @invariant()
    def blocks_are_owned_as_often_as_named(self) -> None:
        scheduler = self.bench.scheduler
        named = Counter(block for s in scheduler._queues.running for block in s.blocks)
        pool = scheduler._tables._pool
        assert [pool.owners(block) for block in range(BLOCKS)] == [named[b] for b in range(BLOCKS)]
        assert scheduler.num_free_blocks == BLOCKS - len(named)
        assert all(not s.blocks and s.computed == 0 for s in scheduler._queues.waiting)

    @invariant()
    def answers_so_far_are_the_undisturbed_ones(self) -> None:
        for name, (prompt, wanted) in self.wanted.items():
            found = self.bench.tokens(name)
            assert tuple(found) == alone(prompt, wanted)[: len(found)], name

    @invariant()
    def a_hit_needs_another_text_that_begins_alike_under_the_same_salt(self) -> None:
        for name, sequence in [
            (s.request.request_id, s) for s in self.bench.scheduler._queues.all()
        ]:
            if sequence.cached:
                hit = sequence.ids[: sequence.cached]
                assert any(
                    [*prompt, *self.bench.tokens(other)][: len(hit)] == hit
                    for other, (prompt, _) in self.wanted.items()
                    if other != name and self.salts[other] == self.salts[name]
                )

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.finish()
        assert self.bench.scheduler.num_free_blocks == BLOCKS
        for name, (prompt, wanted) in self.wanted.items():
            if name not in self.aborted:
                assert tuple(self.bench.tokens(name)) == alone(prompt, wanted), name
                assert self.bench.cached(name) <= (len(prompt) - 1) // 4 * 4
                if wanted.prompt_logprobs >= 0:
                    told = [e for o in self.bench.outputs[name] for e in o.prompt_logprobs]
                    assert [entry.token_id for entry in told] == list(prompt[1:])
                    assert self.bench.cached(name) == 0


class NeighbourRequests(Requests):
    neighbours = True


Requests.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
NeighbourRequests.TestCase.settings = Requests.TestCase.settings
TestRequests = Requests.TestCase
TestNeighbourRequests = NeighbourRequests.TestCase
