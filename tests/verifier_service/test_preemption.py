"""A cache too small for what runs: who gives way, and that nobody can tell from the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tests.verifier_service.scheduler_bench import Bench, plain, sampling
from verifier_service.messages import Sampling

PROMPTS = {"a": [1, 2], "b": [2, 1, 0], "c": [3]}


def crowded(**how: object) -> Bench:
    """24 slots for three sequences that each grow to more than 20."""
    return Bench(num_blocks=6, block_size=4, max_num_seqs=3, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(
    "wanted",
    [
        sampling(),
        sampling(min_tokens=15, stop_token_ids=frozenset({0, 1})),
        sampling(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.3),
        sampling(logit_bias=((2, -3.0),), bad_words=((1, 3),), top_k=3),
        sampling(temperature=0.0, repetition_penalty=1.7, logprobs=1),
    ],
    ids=["seeded", "min_tokens", "penalties", "biases", "greedy"],
)
def test_preempted_requests_answer_as_if_they_had_not_been(wanted: Sampling, caching: bool) -> None:
    bench = crowded(prefix_caching=caching)
    for name, prompt in PROMPTS.items():
        bench.add(name, prompt, wanted)
    bench.finish()
    assert bench.scheduler.num_preemptions, "nothing was preempted: the test does not test"
    for name, prompt in PROMPTS.items():
        assert bench.tokens(name) == plain(prompt, wanted), name
        if wanted.logprobs >= 0:
            told = [entry for output in bench.outputs[name] for entry in output.logprobs]
            assert [entry.token_id for entry in told] == bench.tokens(name)
    assert bench.scheduler.num_free_blocks == 6


class Alternating:
    """A constraint: even ids at even output positions, odd ones at odd; its state is a count."""

    def __init__(self) -> None:
        self.count = 0

    def admitted(self, draft_ids: Sequence[int]) -> int:
        for index, token in enumerate(draft_ids):
            if (self.count + index) % 2 != token % 2:
                return index
        return len(draft_ids)

    def masks(self, draft_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        rows = [0b0101 << (self.count + i) % 2 for i in range(len(draft_ids) + 1)]
        return np.array(rows, dtype=np.int32).reshape(-1, 1)

    def advance(self, token_ids: Sequence[int]) -> None:
        if self.admitted(token_ids) < len(token_ids):
            raise ValueError(f"{list(token_ids)} refused behind {self.count} ids")
        self.count += len(token_ids)

    @property
    def ended(self) -> bool:
        return False


def test_a_constraints_state_survives_preemption() -> None:
    bench = crowded()
    constraints = {name: Alternating() for name in PROMPTS}
    for name, prompt in PROMPTS.items():
        bench.add(name, prompt, sampling(), constraint=constraints[name])
    bench.finish()
    assert bench.scheduler.num_preemptions
    for name, prompt in PROMPTS.items():
        alone = Bench(guess=None, k=0, prefix_caching=False)
        assert bench.tokens(name) == alone.run("x", prompt, sampling(), constraint=Alternating())
        assert [token % 2 for token in bench.tokens(name)] == [i % 2 for i in range(20)]
        assert constraints[name].count == 20


def test_the_least_urgent_gives_way_and_the_latest_among_equals() -> None:
    bench = crowded(guess=None, k=0, prefix_caching=False)
    order: list[str] = []
    for name, priority in ("late", 1), ("first", 0), ("second", 0):
        bench.add(name, [1, 2], sampling(), priority=priority)
    queues = bench.scheduler._queues
    taken = queues.preempt

    def preempt(sequence) -> None:  # type: ignore[no-untyped-def]
        order.append(sequence.request.request_id)
        taken(sequence)

    queues.preempt = preempt  # type: ignore[method-assign]
    bench.finish()
    assert order[0] == "late"
    assert "first" not in order


def test_an_urgent_arrival_takes_no_running_requests_place() -> None:
    """vLLM's rule: only a full cache preempts; the urgent one is next."""
    bench = Bench(max_num_seqs=1, guess=None, k=0)
    bench.add("running", [1, 2], sampling(max_tokens=5), priority=9)
    bench.step()
    bench.add("other", [1, 2], sampling(max_tokens=1), priority=0)
    bench.add("urgent", [1, 2], sampling(max_tokens=1), priority=-9)
    bench.step()
    assert not bench.tokens("urgent")
    assert bench.scheduler.num_preemptions == 0
    while not bench.tokens("urgent"):
        bench.step()
    assert len(bench.tokens("running")) == 5
    assert not bench.tokens("other")


def test_a_preempted_request_comes_before_those_that_never_ran() -> None:
    bench = crowded(guess=None, k=0, prefix_caching=False)
    for name in "abcd":
        bench.add(name, [1, 2], sampling())
    bench.finish()
    assert bench.scheduler.num_preemptions
    last = {name: bench.outputs[name][-1] for name in "abcd"}
    assert all(last.values())
    first_d = bench.outputs["d"][0]
    assert first_d.queue_ns > max(bench.outputs[name][0].queue_ns for name in "abc")


@pytest.mark.parametrize("k", [0, 4])
def test_a_request_aborted_while_preempted_leaves_nothing(k: int) -> None:
    bench = crowded(guess=None, k=k)
    for name in PROMPTS:
        bench.add(name, [1, 2], sampling())
    while not bench.scheduler.num_preemptions:
        bench.step()
    assert bench.scheduler.num_waiting
    for name in PROMPTS:
        bench.scheduler.abort(name)
    assert not bench.scheduler.has_work
    assert bench.scheduler.num_free_blocks == 6
