"""Log-probabilities through the scheduler and the toy engine: speculation changes none of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import Toy
from tests.toy_engine import oracle
from tests.verifier_service.scheduler_bench import Bench, sampling
from verifier_service.engines.logprobs import Question, score
from verifier_service.messages import FinishReason, Output, RejectionRule, Sampling, TokenLogprob

TOY = Toy.target()
PROMPT = [1, 2, 3, 0, 2, 1]


def reference(ids: Sequence[int], first: int, top: int) -> list[TokenLogprob]:
    """Of each id from `first` on, from the model's own logits and nothing else.

    `score` itself is held to arithmetic by hand in engines/test_logprobs.py.
    """
    places = range(first, len(ids))
    if not places:
        return []
    logits = torch.stack([TOY.logits_after(ids[:i]) for i in places])
    return score(logits, [Question(row, ids[i], top) for row, i in enumerate(places)])


def told(outputs: Sequence[Output]) -> list[TokenLogprob]:
    return [entry for output in outputs for entry in output.logprobs]


def prompt_told(outputs: Sequence[Output]) -> list[TokenLogprob]:
    return [entry for output in outputs for entry in output.prompt_logprobs]


def check(bench: Bench, name: str, prompt: Sequence[int], top: int) -> None:
    tokens = bench.tokens(name)
    assert told(bench.outputs[name]) == reference([*prompt, *tokens], len(prompt), top)
    for output in bench.outputs[name]:
        assert len(output.logprobs) == len(output.token_ids)


@pytest.mark.parametrize("rule", list(RejectionRule))
@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_every_rule_and_k_tells_the_targets_own(
    rule: RejectionRule, k: int, temperature: float
) -> None:
    bench = Bench(k=k, rule=rule)
    for seed in range(3):
        wanted = sampling(temperature=temperature, seed=seed, logprobs=2)
        bench.add(f"r{seed}", PROMPT, wanted)
    bench.finish()
    for seed in range(3):
        check(bench, f"r{seed}", PROMPT, 2)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_equal_to_plain_decoding(k: int, temperature: float) -> None:
    wanted = sampling(temperature=temperature, logprobs=3, prompt_logprobs=1, max_tokens=60)
    speculative, plain = Bench(k=k), Bench(guess=None, k=0)
    for bench in (speculative, plain):
        bench.run("a", PROMPT, wanted)
    assert speculative.tokens("a") == plain.tokens("a")
    assert told(speculative.outputs["a"]) == told(plain.outputs["a"])
    assert prompt_told(speculative.outputs["a"]) == prompt_told(plain.outputs["a"])


@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 2, "top_p": 0.6},
        {"min_p": 0.5},
        {"presence_penalty": 2.0, "frequency_penalty": 1.0, "repetition_penalty": 1.5},
        {"logit_bias": ((2, 50.0),)},
        {"allowed_token_ids": (0, 3)},
        {"bad_words": ((1,), (2, 3))},
        {"min_tokens": 15, "stop_token_ids": frozenset({0, 1})},
    ],
    ids=lambda rules: "+".join(rules),
)
@pytest.mark.parametrize("k", [0, 4])
def test_what_is_done_to_the_logits_never_shows(rules: dict[str, object], k: int) -> None:
    bench = Bench(k=k)
    bench.run("a", PROMPT, sampling(logprobs=4, **rules))
    check(bench, "a", PROMPT, 4)


def test_34497_17876_accepted_drafts_have_real_log_probabilities() -> None:
    """vLLM #17876: 0.0 for every token drafted by n-gram; #34497: wrong or none in silence."""
    bench = Bench(guess=oracle(TOY), k=4)
    bench.run("a", PROMPT, sampling(temperature=0.0, logprobs=1, max_tokens=40))
    accepted = [output for output in bench.outputs["a"] if output.round and output.round.accepted]
    assert sum(output.round.accepted for output in accepted if output.round) >= 30
    for output in accepted:
        assert len(output.logprobs) == len(output.token_ids) > 1
        for entry in output.logprobs:
            assert entry.logprob < 0.0
            assert entry.rank == 1
            assert entry.top == ((entry.token_id, entry.logprob),)
    check(bench, "a", PROMPT, 1)


def test_asking_for_them_does_not_turn_speculation_off() -> None:
    without, with_them = Bench(guess=oracle(TOY)), Bench(guess=oracle(TOY))
    without.run("a", PROMPT, sampling(temperature=0.0))
    with_them.run("a", PROMPT, sampling(temperature=0.0, logprobs=4, prompt_logprobs=4))
    rounds = [output.round for output in with_them.outputs["a"] if output.round]
    assert rounds == [output.round for output in without.outputs["a"] if output.round]
    assert max(round_.accepted for round_ in rounds) == 4


@pytest.mark.parametrize("stop", range(4))
def test_a_stop_token_inside_a_block_cuts_them(stop: int) -> None:
    bench = Bench(guess=oracle(TOY), k=8)
    wanted = sampling(temperature=0.0, stop_token_ids=frozenset({stop}), logprobs=0, max_tokens=50)
    bench.run("a", PROMPT, wanted)
    check(bench, "a", PROMPT, 0)


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_max_tokens_inside_a_block_cuts_them(max_tokens: int) -> None:
    bench = Bench(guess=oracle(TOY), k=4)
    bench.run("a", PROMPT, sampling(temperature=0.0, logprobs=0, max_tokens=max_tokens))
    assert len(told(bench.outputs["a"])) == max_tokens
    check(bench, "a", PROMPT, 0)


def test_a_batch_mixes_those_who_ask_with_those_who_do_not() -> None:
    bench = Bench(max_num_seqs=8, budget=24)
    asked = {f"r{i}": i % 5 - 1 for i in range(10)}
    for i, (name, top) in enumerate(asked.items()):
        prompt = PROMPT[: 1 + i % 6]
        temperature = 0.0 if i % 3 else 1.0
        bench.add(name, prompt, sampling(temperature=temperature, seed=i, logprobs=top))
    bench.finish()
    for i, (name, top) in enumerate(asked.items()):
        if top < 0:
            assert told(bench.outputs[name]) == []
        else:
            check(bench, name, PROMPT[: 1 + i % 6], top)


@pytest.mark.parametrize("budget", [8, 9, 13, 64])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 40])
def test_53488_prompts_in_chunks_have_theirs_at_every_boundary(budget: int, length: int) -> None:
    """vLLM #53488: prompt log-probabilities silently wrong with chunked prefill.

    Two prompts share the steps, so that chunks begin and end anywhere.
    """
    prompts = {"a": [(3 * i + i // 5) % 4 for i in range(length)], "b": [1, 3] * 15}
    bench = Bench(budget=budget, max_num_seqs=8)
    for name, prompt in prompts.items():
        bench.add(name, prompt, sampling(prompt_logprobs=2, logprobs=1))
    bench.finish()
    for name, prompt in prompts.items():
        assert prompt_told(bench.outputs[name]) == reference(prompt, 1, 2)
        check(bench, name, prompt, 1)
        first = next(i for i, output in enumerate(bench.outputs[name]) if output.token_ids)
        assert not prompt_told(bench.outputs[name][first + 1 :])


def test_no_step_scores_more_of_prompts_than_its_share() -> None:
    bench = Bench(budget=1000, num_blocks=400, max_num_seqs=8)
    for i in range(3):
        bench.add(f"r{i}", [1, 2, 3, 0] * 60, sampling(prompt_logprobs=0, max_tokens=1, seed=i))
    for _ in range(10):
        chunks = bench.step()
        assert sum(len(chunk.ids) for chunk in chunks if chunk.prompt_logprobs) <= 128
    bench.finish()
    for i in range(3):
        assert len(prompt_told(bench.outputs[f"r{i}"])) == 239


@given(
    data=st.data(),
    count=st.integers(1, 5),
    num_blocks=st.integers(8, 14),
    k=st.integers(0, 4),
    caching=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_preemption_changes_none_and_tells_none_twice(
    data: st.DataObject, count: int, num_blocks: int, k: int, caching: bool
) -> None:
    bench = Bench(
        k=k,
        num_blocks=num_blocks,
        budget=8,
        prefix_caching=caching,
        guess=oracle(TOY) if k else None,
    )
    prompts = {}
    for i in range(count):
        name = f"r{i}"
        prompts[name] = [1, 2, 3, 0] * 2 + data.draw(st.lists(st.integers(0, 3), max_size=9))
        wanted = sampling(temperature=0.0, max_tokens=12, logprobs=1, prompt_logprobs=i % 3 - 1)
        bench.add(name, prompts[name], wanted, priority=data.draw(st.integers(0, 2)))
        if data.draw(st.booleans()):
            bench.step()
    bench.finish()
    for i, (name, prompt) in enumerate(prompts.items()):
        check(bench, name, prompt, 1)
        top = i % 3 - 1
        assert prompt_told(bench.outputs[name]) == (reference(prompt, 1, top) if top >= 0 else [])


def test_a_preempted_prompt_goes_on_where_it_was_told() -> None:
    """Preempted between two of its chunks, a prompt is computed again and told on."""
    bench = Bench(budget=8, num_blocks=16, guess=None, k=0, max_num_seqs=4)
    prompt = [1, 2, 3, 0] * 8
    bench.add("long", prompt, sampling(prompt_logprobs=0, max_tokens=2), priority=5)
    bench.step()
    before = len(prompt_told(bench.outputs["long"]))
    assert 0 < before < len(prompt) - 1
    bench.scheduler.preempt("long")
    assert bench.scheduler.num_running == 0
    bench.finish()
    assert prompt_told(bench.outputs["long"]) == reference(prompt, 1, 0)


def test_a_cached_beginning_is_computed_where_it_must_be_told() -> None:
    bench = Bench()
    prompt = [1, 2, 3, 0] * 5
    bench.run("first", prompt, sampling())
    bench.run("hit", prompt, sampling(logprobs=1))
    assert bench.cached("hit") > 0
    bench.run("told", prompt, sampling(logprobs=1, prompt_logprobs=1))
    assert bench.cached("told") == 0
    assert prompt_told(bench.outputs["told"]) == reference(prompt, 1, 1)
    for name in ("hit", "told"):
        check(bench, name, prompt, 1)


class Complete:
    """A constraint that is met by nothing, and by nothing else."""

    ended = False
    complete = True

    def admitted(self, draft_ids: Sequence[int]) -> int:
        return 0

    def masks(self, draft_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        return np.zeros((len(draft_ids) + 1, 1), dtype=np.int32)

    def advance(self, token_ids: Sequence[int]) -> None:
        raise AssertionError(f"{token_ids} were chosen")


def test_an_empty_answer_still_tells_of_its_prompt() -> None:
    bench = Bench()
    bench.add("a", PROMPT, sampling(prompt_logprobs=1, logprobs=1), constraint=Complete())
    bench.finish()
    assert bench.tokens("a") == []
    assert bench.outputs["a"][-1].finish_reason is FinishReason.STOP
    assert prompt_told(bench.outputs["a"]) == reference(PROMPT, 1, 1)


def test_unasked_requests_carry_nothing() -> None:
    bench = Bench()
    bench.run("a", PROMPT, Sampling(temperature=0.0, max_tokens=9))
    assert not told(bench.outputs["a"])
    assert not prompt_told(bench.outputs["a"])
