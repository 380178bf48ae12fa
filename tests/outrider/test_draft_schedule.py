"""The schedule of ceilings: its rules, its table, and what a wrong one is told."""

import pytest

from outrider.draft_schedule import DraftSchedule, parse_draft_schedule
from outrider.errors import InputError

OPTION = "--num-speculative-tokens-per-batch-size"


@pytest.mark.parametrize(
    ("sequences", "drafts"),
    [(0, 5), (1, 5), (4, 5), (5, 5), (7, 5), (8, 2), (16, 2), (17, 0), (32, 0), (33, 0), (9999, 0)],
)
def test_gaps_and_the_tail_keep_the_k_of_the_range_before(sequences: int, drafts: int) -> None:
    schedule = DraftSchedule.of([[1, 4, 5], [8, 16, 2], [17, 32, 0]])
    assert schedule.at(sequences) == drafts


def test_ranges_may_come_in_any_order_and_go_back_to_json() -> None:
    schedule = parse_draft_schedule("[[5, 9, 1], [1, 4, 3]]", OPTION)
    assert schedule == DraftSchedule(((1, 4, 3), (5, 9, 1)))
    assert parse_draft_schedule(schedule.to_json(), OPTION) == schedule


def test_tuples_of_a_yaml_reader_or_of_python_are_taken() -> None:
    assert DraftSchedule.of(((1, 2, 3),)).at(2) == 3


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([], "no range is given"),
        ({}, "{} is not a list"),
        ("1,4,5", "'1,4,5' is not a list"),
        (None, "None is not a list"),
        ([[1, 4]], "[1, 4] is not three whole numbers"),
        ([[1, 4, 5, 6]], "[1, 4, 5, 6] is not three whole numbers"),
        (["145"], "'145' is not three whole numbers"),
        ([[1, 4, 2.0]], "[1, 4, 2.0] is not three whole numbers"),
        ([[True, 4, 2]], "[True, 4, 2] is not three whole numbers"),
        ([[1, 4, None]], "[1, 4, None] is not three whole numbers"),
        ([[0, 4, 2]], "range [0, 4, 2]: numbers of sequences must be at least 1"),
        ([[1, -4, 2]], "range [1, -4, 2]: numbers of sequences must be at least 1"),
        ([[4, 1, 2]], "the first no greater than the last"),
        ([[1, 4, -1]], "range [1, 4, -1]: K must be 0 or more"),
        ([[1, 4, 5], [4, 8, 2]], "ranges [1, 4, 5] and [4, 8, 2] overlap"),
        ([[5, 8, 2], [1, 6, 5]], "ranges [1, 6, 5] and [5, 8, 2] overlap"),
        ([[1, 4, 5], [1, 4, 5]], "overlap"),
        ([[2, 4, 5]], "the first range is [2, 4, 5]; one must start at 1"),
    ],
)
def test_a_wrong_schedule_is_told_what_is_wrong(value: object, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        DraftSchedule.of(value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1-4:5", "'1-4:5' is no JSON"),
        ("", "'' is no JSON"),
        ("[[1, 4, 5], [4, 8, 2]]", "overlap"),
        ("[[1, 4, NaN]]", "three whole numbers"),
    ],
)
def test_an_option_names_itself(text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_draft_schedule(text, OPTION)
    assert str(caught.value).startswith(f"{OPTION}: ")
    assert told in str(caught.value)
