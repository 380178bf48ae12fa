"""Prefix caching through whole requests: never a token changed, never a hit lost to speculation."""

from __future__ import annotations

import random

import pytest

from tests.toy import Toy
from tests.toy_engine import Guess, oracle, random_guess
from tests.verifier_service.scheduler_bench import Bench, plain, sampling

PROMPT = [i * 7 % 4 for i in range(30)]
ANSWER = 21
GUESSES: dict[str, Guess | None] = {
    "plain": None,
    "random": random_guess,
    "oracle": oracle(Toy.target()),
}


def wrong(toy: Toy) -> Guess:
    """Never the greedy choice: every draft is rejected at temperature 0."""

    def guess(view, rng):  # type: ignore[no-untyped-def]
        best = int(toy.logits_after(view.ids).argmax())
        return [(best + 1) % 4] * view.max_draft_tokens

    return guess


GUESSES["wrong"] = wrong(Toy.target())


def conversation(guess: Guess | None, *, neighbours: bool, temperature: float) -> list[int]:
    """Cached prompt tokens of three turns, each beginning with all that came before."""
    bench = Bench(guess=guess, k=4 if guess else 0, neighbours=neighbours)
    wanted = sampling(temperature=temperature, max_tokens=ANSWER)
    ids = list(PROMPT)
    cached = []
    for turn in range(3):
        tokens = bench.run(f"t{turn}", ids, wanted)
        assert tokens == plain(ids, wanted)
        cached.append(bench.cached(f"t{turn}"))
        ids = [*ids, *tokens, turn, 3, turn]
    return cached


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", sorted(GUESSES))
def test_hits_with_speculation_equal_hits_without(
    name: str, temperature: float, neighbours: bool
) -> None:
    """vLLM #54360, #40624. The second and third turn find answers that drafts helped to write."""
    # All full blocks of 4 before each turn's end; an answer's last token was never computed.
    first = 0
    second = (len(PROMPT) + ANSWER - 1) // 4 * 4
    third = (len(PROMPT) + ANSWER + 3 + ANSWER - 1) // 4 * 4
    found = conversation(GUESSES[name], neighbours=neighbours, temperature=temperature)
    assert found == [first, second, third]


def test_an_equal_prompt_is_computed_but_for_its_last_block() -> None:
    bench = Bench(guess=None, k=0)
    bench.run("a", PROMPT, sampling(max_tokens=1))
    bench.engine.steps.clear()
    bench.run("b", PROMPT, sampling(max_tokens=1))
    assert [(c.start, len(c.ids)) for step in bench.engine.steps for c in step] == [(28, 2)]
    assert bench.scheduler.prefix_cache_queries == 60
    assert bench.scheduler.prefix_cache_hits == 28


@pytest.mark.parametrize("length", range(1, 14))
def test_at_least_the_last_prompt_token_is_computed(length: int) -> None:
    bench = Bench()
    prompt = PROMPT[:length]
    wanted = sampling(max_tokens=6)
    first = bench.run("a", prompt, wanted)
    assert bench.run("b", prompt, wanted) == first == plain(prompt, wanted)
    assert bench.cached("b") == (length - 1) // 4 * 4


def test_salts_change_no_token_and_share_nothing() -> None:
    bench = Bench()
    wanted = sampling()
    for name, salt, hit in ("a", "x", 0), ("b", "y", 0), ("c", "", 0), ("d", "x", 28):
        assert bench.run(name, PROMPT, wanted, salt=salt) == plain(PROMPT, wanted)
        assert bench.cached(name) == hit, name


def test_samples_of_one_prompt_that_come_together_compute_it_once() -> None:
    """Without n requests waiting for one another, each would compute the prompt."""
    bench = Bench(guess=None, k=0)
    for seed in range(4):
        bench.add(f"s{seed}", PROMPT, sampling(seed=seed))
    bench.finish()
    prefill = [c for step in bench.engine.steps for c in step if c.start < len(PROMPT)]
    assert sum(len(c.ids) for c in prefill) == len(PROMPT) + 3 * 2
    assert [bench.cached(f"s{seed}") for seed in range(4)] == [0, 28, 28, 28]
    for seed in range(4):
        assert bench.tokens(f"s{seed}") == plain(PROMPT, sampling(seed=seed))


def test_an_aborted_prompt_that_others_wait_for_is_computed_by_one_of_them() -> None:
    bench = Bench(guess=None, k=0, budget=16)
    for name in "ab":
        bench.add(name, PROMPT, sampling(max_tokens=3))
    bench.step()
    bench.scheduler.abort("a")
    bench.finish()
    assert bench.tokens("b") == plain(PROMPT, sampling(max_tokens=3))
    assert bench.cached("b") == 16


def test_prompt_logprobs_are_of_the_whole_prompt_though_it_is_cached() -> None:
    bench = Bench()
    bench.run("a", PROMPT, sampling(max_tokens=2))
    bench.run("b", PROMPT, sampling(max_tokens=2, prompt_logprobs=0))
    told = [entry for output in bench.outputs["b"] for entry in output.prompt_logprobs]
    assert [entry.token_id for entry in told] == PROMPT[1:]
    assert bench.cached("b") == 0


def test_off_means_off() -> None:
    bench = Bench(prefix_caching=False)
    bench.run("a", PROMPT, sampling())
    bench.run("b", PROMPT, sampling())
    assert bench.cached("b") == 0
    assert bench.scheduler.prefix_cache_queries == 0


def test_a_preempted_request_is_told_its_hits_once() -> None:
    """What it finds again of its own is no saving that its client had."""
    bench = Bench(num_blocks=12, max_num_seqs=3)
    for name in "abc":
        bench.add(name, PROMPT[:6], sampling(max_tokens=30))
    bench.finish()
    assert bench.scheduler.num_preemptions
    assert [bench.cached(name) for name in "abc"] == [0, 4, 4]
    for name in "abc":
        assert bench.tokens(name) == plain(PROMPT[:6], sampling(max_tokens=30))


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_small_cache_under_many_like_prompts_changes_no_token(
    seed: int, neighbours: bool
) -> None:
    """Hits, evictions, preemptions and aborts all at once."""
    rng = random.Random(seed)
    bench = Bench(num_blocks=14, max_num_seqs=4, budget=24, neighbours=neighbours)
    texts = [[rng.randrange(4) for _ in range(24)] for _ in range(2)]
    wanted = {}
    for number in range(14):
        name = f"r{number}"
        prompt = rng.choice(texts)[: rng.randrange(4, 25)]
        salt, priority = rng.choice(["", "t"]), rng.randrange(3)
        wanted[name] = (prompt, sampling(seed=rng.randrange(3), max_tokens=rng.randrange(1, 16)))
        bench.add(name, *wanted[name], salt=salt, priority=priority)
        for _ in range(rng.randrange(4)):
            bench.step()
    gone = rng.choice(sorted(wanted))
    bench.scheduler.abort(gone)
    bench.finish()
    assert bench.scheduler.num_free_blocks == 14
    assert bench.scheduler.prefix_cache_hits > 0
    for name, (prompt, sampled) in wanted.items():
        found, whole = bench.tokens(name), plain(prompt, sampled)
        assert found == (whole[: len(found)] if name == gone else whole), name
