"""When a plain step is begun without a look at what the one before it brought."""

import pytest

from verifier_service.looks import Looks

EXPECTED = 0.005


def steps(looks: Looks, times: int, extra: float, *, blindly: bool, sequences: int = 8) -> None:
    for _ in range(times):
        looks.took(sequences, EXPECTED + extra, EXPECTED, blindly=blindly)


def outcomes(looks: Looks, times: int, worth: float, unused: int = 0, sequences: int = 8) -> None:
    for _ in range(times):
        looks.found(unused, sequences, worth)


def decided(looks: Looks, times: int, unused: int = 0, sequences: int = 8) -> float:
    """The share of steps that are begun blindly."""
    return sum(looks.begins_blindly(unused, sequences) for _ in range(times)) / times


def weighed(worth: float, cost: float) -> Looks:
    looks = Looks()
    outcomes(looks, 100, worth)
    steps(looks, 100, cost, blindly=False)
    steps(looks, 100, 0.0, blindly=True)
    return looks


def test_looks_are_the_rule_until_both_kinds_of_step_were_seen() -> None:
    looks = Looks()
    outcomes(looks, 16, 0.0)
    assert not looks.begins_blindly(0, 8)
    steps(looks, 16, 0.0005, blindly=False)
    # Now the other kind is tried.
    assert decided(looks, 16) == 1.0
    assert looks.cost(8) == 0.0


def test_where_outcomes_were_never_looked_at_nothing_is_begun_blindly() -> None:
    looks = Looks()
    steps(looks, 100, 0.0005, blindly=False)
    assert decided(looks, 100) == 0.0


def test_a_look_that_finds_too_little_is_left_out_but_for_a_few() -> None:
    looks = weighed(worth=0.0002, cost=0.0005)
    assert looks.cost(8) == pytest.approx(0.0005)
    assert decided(looks, 1280) == pytest.approx(1.0 - 4 / 128)


def test_a_look_that_pays_is_taken_but_for_a_few() -> None:
    looks = weighed(worth=0.0010, cost=0.0005)
    assert decided(looks, 1280) == pytest.approx(4 / 128)


def test_what_was_known_before_is_judged_apart() -> None:
    looks = weighed(worth=0.0, cost=0.0005)
    # Where drafts were not used, more of them follow.
    outcomes(looks, 100, 0.002, unused=3)
    assert decided(looks, 128, unused=0) > 0.9
    assert decided(looks, 128, unused=3) < 0.1
    # Two are like three, four are not: of these nothing is known.
    assert decided(looks, 128, unused=2) < 0.1
    assert decided(looks, 128, unused=4) == 0.0


def test_each_number_of_sequences_is_judged_by_its_own_steps() -> None:
    looks = weighed(worth=0.0002, cost=0.0005)
    assert decided(looks, 128, sequences=32) == 0.0
    assert decided(looks, 128, sequences=9) > 0.9


def test_text_that_turns_predictable_is_noticed_without_looking() -> None:
    looks = weighed(worth=0.0, cost=0.0005)
    outcomes(looks, 100, 0.002)
    assert decided(looks, 128) < 0.1


def test_one_interrupted_step_is_no_habit() -> None:
    looks = weighed(worth=0.0004, cost=0.0005)
    steps(looks, 1, 10.0, blindly=True)
    # Ten seconds count as half a step, and that for a twentieth.
    assert looks.cost(8) > 0.0003
    steps(looks, 40, 0.0, blindly=True)
    assert decided(looks, 128) > 0.9


def test_a_look_never_counts_as_a_gain() -> None:
    looks = weighed(worth=0.0, cost=-0.0005)
    assert looks.cost(8) == 0.0


def test_a_look_is_futile_only_where_that_is_known() -> None:
    looks = Looks()
    outcomes(looks, 15, 0.0)
    steps(looks, 100, 0.0005, blindly=False)
    steps(looks, 100, 0.0, blindly=True)
    assert not looks.is_futile(0, 8)
    outcomes(looks, 1, 0.0)
    assert looks.is_futile(0, 8)
    assert not looks.is_futile(3, 8)
