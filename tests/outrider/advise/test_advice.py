"""Which K is named best, and what is said for each way the sums can fall."""

from __future__ import annotations

import pytest

from outrider.advise.advice import Advice, advise, best_choice, choices
from outrider.advise.costs import StepCost, assumed_cost
from outrider.advise.methods import Replayed
from outrider.advise.replay import Tally
from tests.outrider.advise.test_speedup import tally_of

FREE = StepCost("given", row_cost=0.0)
CHEAP = StepCost("given", row_cost=0.02)
DEAR = StepCost("given", row_cost=1.0)


def method(name: str, *tallies: Tally) -> Replayed:
    return Replayed(name, name.split()[0], {}, tallies)


def repeated(drafted: int, accepted: int, rounds: int, plain: int = 0, k: int = 4) -> Tally:
    return tally_of([(drafted, accepted)] * rounds + [(0, 0)] * plain, k)


def advice(cost: StepCost, *methods: Replayed, sequences: tuple[int, ...] = (1,)) -> Advice:
    return advise(choices(methods, cost, sequences, 0.0), cost, sequences)


def test_the_fastest_is_recommended_not_the_longest() -> None:
    short, long = repeated(2, 2, 10, k=2), repeated(8, 3, 10, k=8)
    assert advice(FREE, method("ngram", short, long)).recommended.tally is long
    assert advice(
        StepCost("given", row_cost=0.4), method("ngram", short, long)
    ).recommended.tally is (short)


def test_of_equals_the_smaller_k_is_taken() -> None:
    small, large = repeated(2, 2, 10, k=2), repeated(2, 2, 10, k=8)
    among = choices([method("suffix", small, large)], CHEAP, (1,), 0.0)
    assert best_choice(among, 1).tally is small


def test_worth_turning_on_says_method_k_tokens_and_speed() -> None:
    found = advice(FREE, method("suffix", repeated(4, 3, 10)), sequences=(1, 8))
    assert found.worth_it and found.hints == ()
    assert found.sentence == (
        "worth turning on: suffix with num_speculative_tokens 4 gives 4.00 tokens a step, expected "
        "4.00 times plain decoding's speed with 1 sequence, 4.00 times plain decoding's speed with "
        "8 sequences."
    )


def test_without_a_decoded_token_nothing_is_said_of_the_method() -> None:
    found = advice(CHEAP, method("ngram 2-5", tally_of([], 4)))
    assert not found.worth_it
    assert found.sentence.startswith("nothing can be said: no output holds a token behind its fir")


def test_an_assumed_cost_is_said_to_be_assumed() -> None:
    found = advice(assumed_cost(), method("suffix", repeated(4, 3, 10)))
    assert found.sentence.endswith("(at an assumed cost of verifying).")


def test_a_text_that_repeats_little_asks_for_another_kind_of_method() -> None:
    found = advice(CHEAP, method("ngram 2-5", repeated(4, 1, 10, plain=90)))
    assert not found.worth_it
    assert found.sentence == (
        "not worth turning on: ngram 2-5 gives 1.1: the text repeats little; try a draft model "
        "(method draft_model; --proposer ADDRESS judges a running one)."
    )
    assert found.hints == (
        "Less than half of ngram 2-5's drafts are accepted (25%): change the method, not K.",
    )


def test_no_draft_at_all_is_said() -> None:
    found = advice(FREE, method("ngram", repeated(0, 0, 10)))
    assert not found.worth_it and "no method found a draft" in found.sentence
    assert found.hints == ()


def test_good_drafts_that_cost_what_they_save_are_not_blamed_on_the_text() -> None:
    found = advice(DEAR, method("suffix", repeated(4, 3, 10)))
    assert not found.worth_it
    assert (
        "gives 4.0 tokens a step, but verifying costs what it saves (0.80 times" in found.sentence
    )
    assert found.hints == ()


@pytest.mark.parametrize(("accepted", "told"), [(1, True), (2, False), (3, False)])
def test_below_half_accepted_it_says_to_change_the_method(accepted: int, told: bool) -> None:
    found = advice(FREE, method("ngram", repeated(4, accepted, 10)))
    assert found.worth_it
    assert any("change the method, not K" in hint for hint in found.hints) is told


def test_what_differs_for_more_sequences_is_said() -> None:
    cost = StepCost("given", {1: 10.0, 16: 10.0, 64: 40.0})
    short, long = repeated(1, 1, 10, k=1), repeated(4, 3, 10)
    found = advice(cost, method("ngram", short), method("suffix", long), sequences=(1, 16))
    assert found.recommended.tally is long and found.best[16].tally is not None
    among = choices([method("ngram", short), method("suffix", long)], cost, (16,), 0.0)
    assert found.best[16].tally is best_choice(among, 16).tally


def test_nothing_gained_under_load_is_said() -> None:
    cost = StepCost("given", {1: 10.0, 5: 10.0, 8: 10.0, 9: 20.0, 40: 60.0})
    found = advice(cost, method("suffix", repeated(4, 1, 10)), sequences=(1, 8))
    assert found.worth_it
    assert any(hint.startswith("With 8 sequences nothing is gained") for hint in found.hints)
