"""Requests that bring a prediction, through the scheduler: exact, counted, and in nobody's way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.toy import Toy, total_variation
from tests.toy_engine import ToySource, oracle
from tests.verifier_service.scheduler_bench import Bench, plain, sampling
from verifier_service import constraints, offered
from verifier_service.messages import RejectionRule, Request, Sampling, SequenceView
from verifier_service.prediction import PredictedIds
from verifier_service.sequences import Sequence as Running

PROMPT = [1, 2, 3]
GREEDY = sampling(temperature=0.0, max_tokens=30)


def edited(answer: Sequence[int], seed: int) -> list[int]:
    """The answer as a client may have predicted it: with wrong, missing and further ids."""
    rng = random.Random(seed)
    ids: list[int] = []
    for token in answer:
        kind = rng.randrange(8)
        if kind == 0:
            continue
        ids.append((token + 1) % 4 if kind == 1 else token)
        if kind == 2:
            ids.append(rng.randrange(4))
    return ids


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("others", [True, False])
def test_a_prediction_changes_no_token(temperature: float, seed: int, others: bool) -> None:
    wanted = sampling(temperature=temperature, seed=seed, max_tokens=40)
    answer = plain(PROMPT, wanted)
    for prediction in (answer, edited(answer, seed), list(reversed(answer)), [0] * 9, [1]):
        bench = Bench() if others else Bench(guess=None)
        assert bench.run("a", PROMPT, wanted, prediction=prediction) == answer


@pytest.mark.parametrize("rule", list(RejectionRule))
def test_every_rule_is_greedy_matching_at_temperature_0(rule: RejectionRule) -> None:
    answer = plain(PROMPT, GREEDY)
    bench = Bench(guess=None, rule=rule)
    assert bench.run("a", PROMPT, GREEDY, prediction=edited(answer, 3)) == answer
    assert sum(r.accepted for r in bench.rounds("a")) > 5


@pytest.mark.parametrize("rule", [RejectionRule.STANDARD, RejectionRule.BLOCK])
def test_sampled_answers_have_the_targets_law(rule: RejectionRule) -> None:
    toy, count = Toy.target(), 1500
    room = {"num_blocks": 512, "max_num_seqs": 64, "budget": 512, "max_waiting": count}
    bench = Bench(guess=None, rule=rule, k=3, **room)
    for seed in range(count):
        wanted = sampling(seed=seed * 7919, max_tokens=3)
        bench.add(f"r{seed}", [2, 1], wanted, prediction=[3, 0, 2])
    bench.finish()
    seen = Counter(tuple(bench.tokens(f"r{seed}")) for seed in range(count))
    law = toy.law(toy.context([2, 1]), 3)
    got = {tokens: number / count for tokens, number in seen.items()}
    assert total_variation(got, law) < 0.09
    rounds = [r for seed in range(count) for r in bench.rounds(f"r{seed}")]
    assert 0.05 < sum(r.accepted for r in rounds) / sum(r.drafted for r in rounds) < 0.9


def test_a_right_prediction_is_followed_from_the_second_token_on() -> None:
    answer = plain(PROMPT, GREEDY)
    bench = Bench(guess=None, k=4)
    bench.run("a", PROMPT, GREEDY, prediction=answer)
    rounds = bench.rounds("a")
    assert [r.emitted for r in rounds] == [1, 5, 5, 5, 5, 5, 4]
    assert {r.proposer for r in rounds[1:]} == {"prediction"}
    assert [(r.offered, r.drafted, r.accepted) for r in rounds[1:-1]] == [(4, 4, 4)] * 5


def test_it_works_where_the_verifier_does_not_speculate() -> None:
    answer = plain(PROMPT, GREEDY)
    bench = Bench(guess=None, k=0, predicted_k=8)
    bench.add("with", PROMPT, GREEDY, prediction=answer)
    bench.add("without", PROMPT, GREEDY)
    bench.finish()
    assert bench.tokens("with") == bench.tokens("without") == answer
    assert [r.emitted for r in bench.rounds("with")] == [1, 9, 9, 9, 2]
    assert {r.drafted for r in bench.rounds("without")} == {0}
    assert {r.off_reason for r in bench.rounds("without")[1:]} == {"num_speculative_tokens is 0"}


def test_a_requests_own_ceiling_and_switch_hold_for_its_prediction() -> None:
    answer = plain(PROMPT, GREEDY)
    bench = Bench(guess=None, k=4)
    bench.add("two", PROMPT, GREEDY, k=2, prediction=answer)
    bench.add("none", PROMPT, GREEDY, k=0, prediction=answer)
    bench.finish()
    assert {r.drafted for r in bench.rounds("two")[1:-1]} == {2}
    assert {r.drafted for r in bench.rounds("none")} == {0}
    assert bench.rounds("none")[5].off_reason == "request asked for no speculation"


def test_only_the_prediction_means_that_nobody_else_is_asked() -> None:
    bench = Bench(k=4)
    bench.add("alone", PROMPT, GREEDY, prediction=[9], proposer="prediction")
    bench.add("both", PROMPT, GREEDY, prediction=plain(PROMPT, GREEDY))
    bench.finish()
    assert isinstance(bench.source, ToySource)
    assert bench.source.seen == {2}
    lost = bench.rounds("alone")
    assert {r.proposer for r in lost} == {""}
    assert {r.off_reason for r in lost[1:-1]} == {"the answer is nowhere in the prediction"}


def test_the_better_of_prediction_and_proposer_is_verified() -> None:
    """Both offer blocks in each round; what is right more often gets the rounds."""
    answer = plain(PROMPT, sampling(temperature=0.0, max_tokens=200))

    def wrong(view: SequenceView, rng: random.Random) -> list[int]:
        right = oracle(Toy.target())(view, rng)
        return [(token + 1) % 4 for token in right]

    wanted = sampling(temperature=0.0, max_tokens=200)
    for guess, prediction, winner in (
        (wrong, answer, "prediction"),
        (oracle(Toy.target()), [(token + 1) % 4 for token in answer], "toy"),
    ):
        bench = Bench(guess=guess, num_blocks=128)
        assert bench.run("a", PROMPT, wanted, prediction=prediction) == answer
        used = Counter(r.proposer for r in bench.rounds("a")[1:])
        assert used.most_common(1)[0][0] == winner
        assert used[winner] > 0.8 * used.total()


def test_after_a_preemption_the_prediction_goes_on_where_the_answer_is() -> None:
    answer = plain(PROMPT, GREEDY)
    bench = Bench(guess=None)
    bench.add("a", PROMPT, GREEDY, prediction=answer)
    for _ in range(3):
        bench.step()
    bench.scheduler.preempt("a")
    bench.finish()
    assert bench.tokens("a") == answer
    last = [r for r in bench.rounds("a") if r.drafted]
    assert all(r.accepted == r.drafted for r in last)


class Only:
    """A structure that allows the ids of one answer, in order."""

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = list(answer)
        self.at = 0

    def admitted(self, draft_ids: Sequence[int]) -> int:
        count = 0
        for token, right in zip(draft_ids, self.answer[self.at :], strict=False):
            if token != right:
                break
            count += 1
        return count


def test_a_structure_cuts_predicted_drafts_like_any_other() -> None:
    request = Request("a", [5], Sampling(max_tokens=9), prediction=PredictedIds([1, 2, 3]))
    request.constraint = Only([1, 9])  # type: ignore[assignment]
    sequence = Running(1, request, lambda _: None, 4, 4, 0, ids=[5])
    (cut,) = constraints.admissible(sequence, offered.usable(sequence, {}))
    assert (cut.token_ids, cut.refused, cut.proposer) == ((1,), 2, "prediction")
