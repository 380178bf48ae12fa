"""When a plain step is begun without a look at what the one before it brought."""

import pytest

from verifier_service.looks import Looks


def looked(looks: Looks, times: int, seconds: float, *, sequences: int = 8) -> None:
    for _ in range(times):
        looks.took(sequences, seconds)


def outcomes(looks: Looks, times: int, worth: float, unused: int = 0, sequences: int = 8) -> None:
    for _ in range(times):
        looks.found(unused, sequences, worth)


def decided(looks: Looks, times: int, unused: int = 0, sequences: int = 8) -> float:
    """The share of steps that are begun blindly."""
    return sum(looks.begins_blindly(unused, sequences) for _ in range(times)) / times


def weighed(worth: float, cost: float) -> Looks:
    looks = Looks()
    outcomes(looks, 100, worth)
    looked(looks, 100, cost)
    return looks


def test_looks_are_the_rule_until_it_is_known_what_they_take() -> None:
    looks = Looks()
    outcomes(looks, 16, 0.0)
    looked(looks, 2, 0.0005)
    assert decided(looks, 32) == 0.0
    assert looks.cost(8) == 0.0
    looked(looks, 1, 0.0006)
    # The shortest of the first ones counts: one may have been interrupted.
    assert looks.cost(8) == 0.0005
    assert decided(looks, 32) > 0.9


def test_where_outcomes_were_never_looked_at_nothing_is_begun_blindly() -> None:
    looks = Looks()
    looked(looks, 100, 0.0005)
    assert decided(looks, 100) == 0.0


@pytest.mark.parametrize(("sequences", "needed"), [(1, 16), (2, 8), (4, 4), (128, 4)])
def test_outcomes_of_many_sequences_are_soon_known(sequences: int, needed: int) -> None:
    looks = Looks()
    looked(looks, 3, 0.0005, sequences=sequences)
    outcomes(looks, needed - 1, 0.0, sequences=sequences)
    assert not looks.is_futile(0, sequences)
    outcomes(looks, 1, 0.0, sequences=sequences)
    assert looks.is_futile(0, sequences)


def test_a_look_that_finds_too_little_is_left_out_but_for_a_few() -> None:
    looks = weighed(worth=0.0002, cost=0.0005)
    assert looks.cost(8) == pytest.approx(0.0005)
    assert decided(looks, 1280) == pytest.approx(1.0 - 1 / 32)


def test_a_look_that_pays_is_always_taken() -> None:
    assert decided(weighed(worth=0.0010, cost=0.0005), 1280) == 0.0


def test_what_was_known_before_is_judged_apart() -> None:
    looks = weighed(worth=0.0, cost=0.0005)
    # Where drafts were not used, more of them follow.
    outcomes(looks, 100, 0.002, unused=3)
    assert decided(looks, 128, unused=0) > 0.9
    assert decided(looks, 128, unused=3) == 0.0
    # Two are like three, four are not: of these nothing is known.
    assert decided(looks, 128, unused=2) == 0.0
    assert decided(looks, 128, unused=4) == 0.0


def test_each_number_of_sequences_is_judged_by_its_own_steps() -> None:
    looks = weighed(worth=0.0002, cost=0.0005)
    assert decided(looks, 128, sequences=32) == 0.0
    assert decided(looks, 128, sequences=9) > 0.9


def test_text_that_turns_predictable_is_noticed_without_looking() -> None:
    looks = weighed(worth=0.0, cost=0.0005)
    outcomes(looks, 100, 0.002)
    assert decided(looks, 128) < 0.1


def test_one_interrupted_look_is_no_habit() -> None:
    looks = weighed(worth=0.0004, cost=0.0005)
    looked(looks, 1, 10.0)
    # Ten seconds count as four looks, and that for a tenth.
    assert looks.cost(8) < 0.0007
    looked(looks, 40, 0.0005)
    assert looks.cost(8) == pytest.approx(0.0005, rel=0.05)


def test_a_look_is_futile_only_where_that_is_known() -> None:
    looks = Looks()
    outcomes(looks, 3, 0.0)
    looked(looks, 100, 0.0005)
    assert not looks.is_futile(0, 8)
    outcomes(looks, 1, 0.0)
    assert looks.is_futile(0, 8)
    assert not looks.is_futile(3, 8)
