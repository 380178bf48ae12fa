"""Re-runs: what may be re-run, how it is made plain, and what a difference counts as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.divergence import Logits, scores
from benchmarks.soak_answers import Answer, Choice
from benchmarks.soak_draw import Place, SoakRequest
from benchmarks.soak_replay import Verdict, compare, pair_gap, plain, processed, replayable

SEED = 11


class Target:
    """Logits that depend on the last id; token 3 lies `lead` above token 4 behind any id."""

    def __init__(self, lead: float) -> None:
        self.row = np.array([0, 0, 0, 9 + lead, 9, 0], dtype=np.float32)
        self.asked: list[list[int]] = []

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        self.asked.append(list(ids))
        return np.tile(self.row, (len(ids) - first + 1, 1))


def request(place: Place = Place.COMPLETIONS, **changes: Any) -> SoakRequest:
    body = {"prompt": "x", "max_tokens": 4, "seed": SEED, "temperature": 0} | changes
    return SoakRequest(3, place, body, ())


def answer(*outputs: list[int], text: str = "t") -> Answer:
    made = Answer(status=200)
    for index, ids in enumerate(outputs):
        made.choices[index] = Choice(text, ids, [1, 2], finish_reason="length")
    return made


def verdicts(lead: float, got: Answer, right: Answer, **changes: Any) -> list[Verdict]:
    return [one.verdict for one in compare(request(**changes), got, right, Target(lead))]


def test_equal_answers_need_no_model() -> None:
    target = Target(0)
    (one,) = compare(request(), answer([3, 4]), answer([3, 4]), target)
    assert (one.verdict, one.tokens, one.position) == (Verdict.EQUAL, 2, None)
    assert target.asked == []


def test_a_tie_is_numerical_and_anything_else_is_not() -> None:
    assert verdicts(0.00001, answer([3, 3]), answer([3, 4])) == [Verdict.NUMERICAL]
    assert verdicts(0.001, answer([3, 3]), answer([3, 4])) == [Verdict.DIFFERENT]


def test_the_scores_are_those_behind_what_was_common() -> None:
    target = Target(0.5)
    (one,) = compare(request(), answer([5, 3, 3]), answer([5, 4, 3]), target)
    assert target.asked == [[1, 2, 5]]
    assert (one.position, one.expected, one.got) == (1, 4, 3)
    assert one.gap == pytest.approx(0.5)


def test_an_output_that_ends_early_is_never_numerical() -> None:
    (one,) = compare(request(), answer([3]), answer([3, 4]), Target(0))
    assert one.verdict is Verdict.DIFFERENT
    assert one.detail == "1 tokens instead of 2"


def test_equal_ids_with_another_text_or_end_differ() -> None:
    assert verdicts(0, answer([3], text="a"), answer([3], text="b")) == [Verdict.DIFFERENT]
    other = answer([3])
    other.choices[0].finish_reason = "stop"
    assert verdicts(0, answer([3]), other) == [Verdict.DIFFERENT]


def test_calls_are_compared_by_what_they_mean_unless_they_were_cut() -> None:
    def called(arguments: str, finish: str = "tool_calls") -> Answer:
        made = answer([3], text="")
        choice = made.choices[0]
        choice.tool_names, choice.tool_arguments = {0: "tides"}, {0: arguments}
        choice.finish_reason = finish
        return made

    tools: dict[str, Any] = {"tools": [{}]}
    right = called('{"a": 1}')
    assert verdicts(0, called('{"a":1}'), right, **tools) == [Verdict.EQUAL]
    assert verdicts(0, called('{"a": 2}'), right, **tools) == [Verdict.DIFFERENT]
    cut, text = called('{"a"', "length"), answer([3], text='[{"a"')
    assert verdicts(0, cut, text, **tools) == [Verdict.EQUAL]


def test_each_choice_is_judged_with_its_own_seed() -> None:
    target = Target(0)
    asked = request(temperature=1.0, n=2)
    row, prompt = target.row, [1, 2]
    for number, seed in ((0, SEED), (1, SEED + 1)):
        right = scores(row[None], 1.0, seed, 2)[0]
        gap = pair_gap(target, prompt, [], (3, 4), asked.body, number)
        assert gap == pytest.approx(abs(right[3] - right[4]))
    wrong = answer([3], [4], [3], [3])
    found = compare(asked, wrong, answer([3], [3], [3], [3]), target)
    assert [one.verdict for one in found].count(Verdict.EQUAL) == 3
    assert found[1].gap == pytest.approx(pair_gap(target, prompt, [], (3, 4), asked.body, 1))


def test_seeds_wrap_around_as_int64() -> None:
    body = {"seed": 2**63 - 1, "temperature": 1.0}
    target = Target(0)
    right = scores(target.row[None], 1.0, -(2**63), 2)[0]
    gap = pair_gap(target, [1, 2], [], (3, 4), body, 1)
    assert gap == pytest.approx(abs(right[3] - right[4]))


def test_penalties_and_bias_move_the_scores() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.0], dtype=np.float32)
    body = {
        "repetition_penalty": 2.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "logit_bias": {"3": -1.5},
    }
    row = processed(logits, [0, 1], [2, 2], body)
    # Prompt tokens are repeated, too; output tokens are counted.
    assert row.tolist() == pytest.approx([1.0, -4.0, 0.5 - 1.0 - 0.25, -1.5])
    assert processed(logits, [0, 1], [2], {}).tolist() == logits.tolist()


def test_only_whole_seeded_answers_that_tell_their_ids_are_replayed() -> None:
    whole = answer([3, 4])
    assert replayable(request(), whole)
    assert not replayable(SoakRequest(0, Place.COMPLETIONS, {"prompt": "x"}, ()), whole)
    assert not replayable(request(n=2, temperature=1), whole)
    for changes in ({"left": True}, {"broken": "x"}, {"status": 500}):
        other = answer([3, 4])
        for name, value in changes.items():
            setattr(other, name, value)
        assert not replayable(request(), other)
    silent = answer([3, 4])
    silent.choices[0].ids = None
    assert not replayable(request(), silent)


def test_a_plain_twin_differs_in_how_it_is_made_only() -> None:
    asked = request(
        stream=True,
        stream_options={"include_usage": True},
        request_id="r",
        cache_salt="s",
        speculative_decoding={"proposer": "ngram"},
    )
    assert plain(asked).body == {
        "prompt": "x",
        "max_tokens": 4,
        "seed": SEED,
        "temperature": 0,
        "cache_salt": "s",
        "return_token_ids": True,
        "speculative_decoding": {"enabled": False},
    }
    twin = plain(SoakRequest(1, Place.GRPC_TEXT, {"prompt": "x", "seed": 1}, (), cancel_after=2))
    # Over gRPC the prompt's ids come with its log-probabilities.
    assert twin.body["prompt_logprobs"] == 0
    assert twin.cancel_after is None
