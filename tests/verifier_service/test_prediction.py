"""Where an answer is in its prediction, and what is drafted there."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier_service.messages import DraftBlock, QForm
from verifier_service.prediction import PredictedIds

PROMPT = [90, 91]


def after(prediction: list[int], answer: list[int], *, most: int = 3) -> DraftBlock | None:
    """The block for the whole answer at once."""
    return PredictedIds(prediction).block([*PROMPT, *answer], len(PROMPT), most)


def drafts(prediction: list[int], answer: list[int], *, most: int = 3) -> list[int]:
    block = after(prediction, answer, most=most)
    return [] if block is None else list(block.token_ids)


def test_an_answer_begins_where_its_prediction_does() -> None:
    block = after([1, 2, 3, 4, 5], [])
    assert block == DraftBlock("prediction", 2, (1, 2, 3), QForm.ONE_HOT, match_length=0)


def test_it_goes_on_behind_what_was_said() -> None:
    block = after([1, 2, 3, 4, 5], [1, 2])
    assert block == DraftBlock("prediction", 4, (3, 4, 5), QForm.ONE_HOT, match_length=2)


def test_no_more_than_is_wanted_or_left() -> None:
    assert drafts([1, 2, 3], [1], most=1) == [2]
    assert drafts([1, 2, 3], [1], most=9) == [2, 3]
    assert after([1, 2, 3], [1], most=0) is None
    assert after([1, 2, 3], [1, 2, 3]) is None
    assert after([], []) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # 3 became 7.
        ([1, 2, 7, 4], [5, 6]),
        # 7 and 8 were put in.
        ([1, 2, 7, 8, 3], [4, 5, 6]),
        # 3 and 4 were left out.
        ([1, 2, 5], [6]),
        # It begins later.
        ([4], [5, 6]),
        # It went back to the beginning.
        ([1, 2, 3, 4, 5, 6, 1], [2, 3, 4]),
    ],
)
def test_it_is_found_again_where_the_tail_matches(answer: list[int], expected: list[int]) -> None:
    assert drafts([1, 2, 3, 4, 5, 6], answer) == expected


def test_nothing_is_drafted_while_the_answer_is_elsewhere() -> None:
    assert after([1, 2, 3, 4], [1, 7]) is None
    assert after([1, 2, 3, 4], [7, 8, 9]) is None
    # What ends the prediction is followed by nothing.
    assert after([1, 2, 3, 4], [7, 4]) is None


def test_the_longest_run_wins_however_far_it_is() -> None:
    prediction = [5, 1, 9, 9, 9, 9, 4, 5, 1, 2, 9, 6, 5, 1, 3]
    assert drafts(prediction, [8, 6, 5, 1], most=1) == [3]
    assert drafts(prediction, [8, 4, 5, 1], most=1) == [2]


def test_of_equal_runs_the_nearest_ahead_wins() -> None:
    prediction = [1, 2, 7, 3, 4, 7, 5, 6, 7, 8]
    # Parted from it at 4; 7 is followed by 3 (behind), 5 (ahead) and 8 (farther ahead).
    assert drafts(prediction, [1, 2, 7, 3, 0, 7], most=1) == [5]
    # Behind the last one, the nearest of those before.
    assert drafts(prediction, [1, 2, 7, 3, 4, 7, 5, 6, 7, 8, 0, 7], most=1) == [8]


def test_the_prompt_is_no_part_of_the_answer() -> None:
    followed = PredictedIds([1, 2, 3])
    block = followed.block([2], 1, 3)
    assert block is not None and block.token_ids == (1, 2, 3)
    # A run does not reach into the prompt.
    block = PredictedIds([1, 2, 3]).block([1, 2], 1, 3)
    assert block is not None and (block.token_ids, block.match_length) == ((3,), 1)


def test_a_very_common_id_is_looked_up_near_by_only() -> None:
    followed = PredictedIds([7] * 5000 + [8])
    block = followed.block([*PROMPT, 1, 7], len(PROMPT), 3)
    assert block is not None and block.token_ids == (7, 7, 7)


IDS = st.lists(st.integers(0, 3), max_size=24)


@given(IDS, IDS, st.randoms(use_true_random=False))
def test_rounds_of_any_size_find_what_single_ids_find(
    prediction: list[int], answer: list[int], rng: random.Random
) -> None:
    """Where the answer is depends on the answer, but for which of equal places was last held."""
    slow, quick = PredictedIds(prediction), PredictedIds(prediction)
    last: DraftBlock | None = slow.block(PROMPT, 2, 4)
    for end in range(1, len(answer) + 1):
        last = slow.block([*PROMPT, *answer[:end]], 2, 4)
    cuts = sorted(rng.sample(range(len(answer) + 1), rng.randint(0, len(answer))))
    for cut in [*cuts, len(answer)]:
        block = quick.block([*PROMPT, *answer[:cut]], 2, 4)
    for found in (last, block):
        if found is not None:
            tail, count = answer, found.match_length
            places = [
                place
                for place in range(count, len(prediction))
                if prediction[place - count : place] == tail[len(tail) - count :]
            ]
            ends = [tuple(prediction[place : place + 4]) for place in places]
            assert found.token_ids in ends
            assert found.base_length == len(PROMPT) + len(answer)


@given(IDS, IDS)
def test_asking_again_changes_nothing(prediction: list[int], answer: list[int]) -> None:
    followed = PredictedIds(prediction)
    ids = [*PROMPT, *answer]
    assert followed.block(ids, 2, 4) == followed.block(ids, 2, 4)
