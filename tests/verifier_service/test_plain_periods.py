"""Plain periods: what they measure, what they cost, and that they follow what really pays."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from verifier_service.plain_periods import PlainPeriods


class Load:
    """Steps of `sequences` whose drafts multiply the speed by `factor(step)`, with noise."""

    def __init__(
        self,
        periods: PlainPeriods,
        factor: Callable[[int], float],
        *,
        noise: float = 0.05,
        promised: float = 0.05,
        sequences: Callable[[int], int] = lambda _step: 8,
    ) -> None:
        self.periods = periods
        self.factor = factor
        self.noise = noise
        self.promised = promised
        self.sequences = sequences
        self.random = random.Random(1)
        # The machine's own speed wanders, as that of a shared one does.
        self.wander = 0.0
        self.plain: list[bool] = []
        self.seconds = self.tokens = 0.0
        # What always taking the faster one would have emitted in the same time.
        self.best = self.never = 0.0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = len(self.plain)
            sequences = self.sequences(step)
            plain = self.periods.begin(sequences, self.promised, speculating=True)
            self.plain.append(plain)
            self.wander = 0.98 * self.wander + self.random.gauss(0.0, 0.02)
            speed = math.exp(self.wander + self.random.gauss(0.0, self.noise))
            factor = self.factor(step)
            # Drafts: half as many tokens again, in a step that is longer.
            tokens = sequences if plain else 2 * sequences - sequences // 2 * (step % 2)
            seconds = 0.04 / speed * (1.0 if plain else tokens / sequences / factor)
            self.periods.observe(sequences, tokens, seconds, drafted=not plain)
            self.seconds += seconds
            self.tokens += tokens
            per_second = sequences * speed / 0.04
            self.never += per_second * seconds
            self.best += per_second * seconds * max(factor, 1.0)

    @property
    def share(self) -> float:
        return sum(self.plain) / len(self.plain)


@pytest.mark.parametrize("factor", [0.7, 0.9, 1.0, 1.1, 1.5, 2.5])
def test_half_plain_measures_the_gain(factor: float) -> None:
    load = Load(PlainPeriods(0.5), lambda _step: factor)
    load.run(6000)
    measured = load.periods.measured
    assert measured.periods > 100
    assert measured.error < 0.03 * factor
    assert abs(measured.gain - (factor - 1.0)) < 4 * measured.error
    assert load.share == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.25])
def test_a_fixed_share_is_kept(share: float) -> None:
    load = Load(PlainPeriods(share), lambda _step: 1.2)
    load.run(8000)
    assert load.share == pytest.approx(share, rel=0.15)
    assert abs(load.periods.measured.gain - 0.2) < 0.1


@pytest.mark.parametrize("factor", [0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.2, 2.0])
@pytest.mark.parametrize("promised", [0.0, 0.05, 0.3])
def test_little_is_lost_whatever_was_promised(factor: float, promised: float) -> None:
    """After the first comparisons the loss against the better of the two stays small."""
    load = Load(PlainPeriods(), lambda _step: factor, promised=promised)
    load.run(400)
    begun, could = load.tokens, load.best
    load.run(6000)
    assert (load.tokens - begun) / (load.best - could) > 0.975


@pytest.mark.parametrize("worse", [0.8, 0.9])
def test_never_slower_than_plain_but_for_what_measuring_costs(worse: float) -> None:
    load = Load(PlainPeriods(), lambda _step: worse, promised=0.1)
    load.run(4000)
    assert load.tokens / load.never > 0.98
    assert load.share > 0.9


def test_text_that_begins_to_repeat_is_noticed() -> None:
    load = Load(PlainPeriods(), lambda step: 0.9 if step < 2000 else 1.6)
    load.run(2000)
    assert load.share > 0.7
    before = len(load.plain)
    load.run(2500)
    assert sum(load.plain[before + 1000 :]) / 1500 < 0.1


def test_text_that_ends_repeating_is_noticed() -> None:
    load = Load(PlainPeriods(), lambda step: 1.6 if step < 2000 else 0.85)
    load.run(2000)
    assert load.share < 0.1
    before = len(load.plain)
    load.run(6000)
    assert sum(load.plain[before + 3000 :]) / 3000 > 0.8


def test_numbers_of_sequences_are_judged_apart() -> None:
    """Drafts pay for one sequence and not for sixteen; both are right at once."""
    periods = PlainPeriods()

    def sequences(step: int) -> int:
        return 1 if step // 400 % 2 == 0 else 16

    load = Load(
        periods, lambda step: 1.5 if sequences(step) == 1 else 0.85, sequences=sequences, noise=0.02
    )
    load.run(16_000)
    last = range(8000, 16_000)
    alone = [load.plain[step] for step in last if sequences(step) == 1]
    many = [load.plain[step] for step in last if sequences(step) == 16]
    assert sum(alone) / len(alone) < 0.25
    assert sum(many) / len(many) > 0.6


def test_only_steps_of_as_many_sequences_are_compared() -> None:
    """A sequence that ends makes steps faster, with drafts or without."""
    periods = PlainPeriods(0.5)
    load = Load(periods, lambda _step: 1.0, noise=0.0, sequences=lambda step: 8 - step // 17 % 2)
    load.run(2000)
    assert periods.measured.periods == 0


def test_pauses_are_cut() -> None:
    """A step of seconds, as when the machine was busy elsewhere, does not decide a comparison."""
    periods = PlainPeriods(0.5)
    for step in range(340):
        plain = periods.begin(4, 0.0, speculating=True)
        paused = not plain and step % 16 == 5
        periods.observe(4, 4, 5.0 if paused else 0.04, drafted=not plain)
    assert -0.15 < periods.measured.gain < 0.0


def test_off_means_never_plain() -> None:
    load = Load(PlainPeriods(0.0), lambda _step: 0.5)
    load.run(500)
    assert load.share == 0.0
    assert load.periods.measured.periods == 0


def test_nothing_is_held_back_while_nothing_is_drafted_anyway() -> None:
    periods = PlainPeriods(0.5)
    load = Load(periods, lambda _step: 1.0)
    load.run(30)
    assert any(load.plain)
    for _ in range(100):
        assert not periods.begin(8, 0.0, speculating=False)
        periods.observe(8, 8, 0.04, drafted=False)
    # It begins anew, with drafts.
    assert not periods.begin(8, 0.0, speculating=True)


def test_requests_too_short_for_a_comparison_are_compared_with_their_neighbours() -> None:
    """Each has 20 steps, behind a step that only prefills."""
    periods = PlainPeriods()
    load = Load(periods, lambda _step: 1.5, noise=0.02, sequences=lambda _step: 1)
    for _ in range(300):
        assert not periods.begin(0, 0.05, speculating=True)
        load.run(20)
    assert periods.measured.periods >= 3
    assert abs(periods.measured.gain - 0.5) < 0.1
    assert load.share < 0.05


def test_says_that_drafts_lose_only_when_that_is_sure() -> None:
    periods = PlainPeriods()
    load = Load(periods, lambda _step: 0.8, promised=0.1)
    assert periods.loses == 0.0
    load.run(3000)
    assert periods.loses == pytest.approx(0.2, abs=0.08)
    gaining = Load(PlainPeriods(), lambda _step: 1.3)
    gaining.run(3000)
    assert gaining.periods.loses == 0.0


@pytest.mark.parametrize("share", [-0.1, 0.51, 1.0])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"allowed: 0 to 0\.5"):
        PlainPeriods(share)


class Text:
    """One sequence whose drafts are right in passages that repeat, and nowhere else.

    A passage takes `length` steps on average, and `share` of the steps lie in one. Steps with
    drafts take `cost` times a plain one.
    """

    def __init__(
        self, periods: PlainPeriods, seed: int, *, length: float, share: float, cost: float
    ) -> None:
        self.periods = periods
        self.random = random.Random(seed)
        self.leave = 1.0 / length
        self.enter = self.leave * share / (1.0 - share)
        self.cost = cost
        self.repeats = False
        self.promised = math.log(1.0 + 2.5 * share) - math.log(1.0 + share * (cost - 1.0))
        self.tokens = self.steps = self.plain = 0
        self.seconds = 0.0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            change = self.leave if self.repeats else self.enter
            self.repeats ^= self.random.random() < change
            plain = self.periods.begin(1, math.expm1(self.promised), speculating=True)
            drafted = self.repeats and not plain
            tokens = self.random.randint(2, 5) if drafted else 1
            seconds = (self.cost if drafted else 1.0) * (1.0 + self.random.gauss(0.0, 0.01))
            self.periods.observe(1, tokens, seconds, drafted=drafted)
            self.tokens += tokens
            self.seconds += seconds
            self.plain += plain
        self.steps += steps

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


@pytest.mark.parametrize("length", [10.0, 30.0, 60.0])
def test_a_passage_without_drafts_is_no_proof_that_drafts_lose(length: float) -> None:
    """Sixteen steps of one text hold many drafts or none: by chance, not by what drafts gain."""
    texts = [Text(PlainPeriods(), seed, length=length, share=0.3, cost=1.05) for seed in range(12)]
    for text in texts:
        text.run(1500)
    assert max(text.plain / text.steps for text in texts) < 0.2
    assert sum(text.plain for text in texts) / sum(text.steps for text in texts) < 0.1
    assert sum(text.speed for text in texts) / len(texts) > 1.5


@pytest.mark.parametrize("length", [10.0, 60.0])
def test_one_text_whose_drafts_cost_more_than_they_bring_is_given_up(length: float) -> None:
    """They emit 3.5 tokens a step, in five times the time, whatever was promised."""
    texts = [Text(PlainPeriods(), seed, length=length, share=0.3, cost=5.0) for seed in range(8)]
    for text in texts:
        text.promised = 0.1
        text.run(6000)
    assert sum(text.plain for text in texts) / sum(text.steps for text in texts) > 0.8
    assert sum(text.speed for text in texts) / len(texts) > 0.95


def test_what_slows_steps_without_drafts_is_seen_too() -> None:
    """Asking alone may cost: then steps that had no draft are slower than plain ones."""
    periods = PlainPeriods()
    noise = random.Random(2)
    plains = 0
    for step in range(3000):
        plain = periods.begin(4, 0.1, speculating=True)
        drafted = not plain and step % 10 == 0
        seconds = (1.0 if plain else 1.2) * (1.0 + noise.gauss(0.0, 0.01))
        periods.observe(4, 8 if drafted else 4, seconds, drafted=drafted)
        plains += plain
    assert plains > 0.7 * 3000


def test_what_is_known_of_other_loads_is_believed_until_this_one_is_compared() -> None:
    """Eight clients become thirty-two: the gain of eight is a better guess than none."""
    periods = PlainPeriods()
    load = Load(periods, lambda _step: 1.5, promised=0.4)
    load.run(1000)
    load.sequences = lambda _step: 32
    load.run(200)
    assert sum(load.plain[1000:]) <= 2 * 17
    assert periods.measured.gain == pytest.approx(0.5, abs=0.1)


def test_what_is_known_of_other_loads_does_not_hold_against_measurements() -> None:
    periods = PlainPeriods()
    load = Load(periods, lambda step: 1.5 if step < 1000 else 0.8, promised=0.4)
    load.run(1000)
    load.sequences = lambda _step: 32
    load.run(4000)
    assert sum(load.plain[3000:]) / 2000 > 0.8
