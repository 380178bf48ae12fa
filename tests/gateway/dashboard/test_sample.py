"""Samples are differences of the verifiers' totals: they add up, whatever happens in between."""

from __future__ import annotations

import random
from itertools import zip_longest
from typing import Any

from gateway.dashboard.sample import sample
from tests.gateway.dashboard.infos import K, info

STEPS = [(3, 2), (3, 3), (1, 0), (2, 2), (3, 0)]


def test_it_is_what_was_added() -> None:
    told = sample(info(STEPS[:2], tokens=7, waits=2), info(STEPS, tokens=19, waits=5), 2.0)
    assert told["dt"] == 2.0
    assert told["generation_tokens"] == 12
    assert (told["steps"], told["drafted"], told["accepted"]) == (3, 6, 2)
    assert told["histogram"] == [2, 0, 1]
    assert told["proposed_per_position"] == [3, 2, 1]
    assert told["accepted_per_position"] == [1, 1]
    assert told["proposers"] == {"ngram": [3, 6, 2]}
    assert told["times"]["draft_wait"] == [3, 0.006]
    assert told["times"]["verify"] == [0, 0.0]
    assert (told["running"], told["waiting"]) == (2, 1)


def test_an_idle_verifier_adds_nothing() -> None:
    told = sample(info(STEPS, tokens=7), info(STEPS, tokens=7), 1.0)
    assert (told["steps"], told["generation_tokens"], told["proposers"]) == (0, 0, {})
    assert "histogram" not in told
    assert told["off"] == {}


def test_reasons_and_lookahead_are_differences_too() -> None:
    told = sample(info(off=4, hits=1, misses=5), info(off=6, hits=4, misses=5), 1.0)
    assert told["off"] == {"no draft arrived": 2}
    assert told["lookahead"] == [3, 0]


def test_a_verifier_that_was_started_again_counts_from_zero() -> None:
    told = sample(info(STEPS, tokens=99), info(STEPS[:1], tokens=5, instance="two"), 1.0)
    assert told["generation_tokens"] == 5
    assert (told["steps"], told["drafted"], told["accepted"]) == (1, 3, 2)


def test_totals_that_fell_began_again() -> None:
    told = sample(info(STEPS, tokens=99, waits=9, off=9), info(STEPS[:1], tokens=5, waits=1), 1.0)
    assert told["generation_tokens"] == 5
    assert told["times"]["draft_wait"] == [1, 0.002]
    assert min(told["histogram"]) >= 0


def test_another_ceiling_gives_longer_arrays() -> None:
    bigger = info(STEPS, tokens=9)
    bigger.acceptance.acceptance_histogram.append(4)
    bigger.acceptance.num_spec_steps += 4
    assert sample(info(STEPS), bigger, 1.0)["histogram"] == [0] * (K + 1) + [4]


def test_samples_add_up_to_the_totals() -> None:
    rng = random.Random(5)
    steps: list[tuple[int, int]] = []
    before, told = info(), []
    for _ in range(50):
        for _ in range(rng.randrange(4)):
            drafted = rng.randrange(1, K + 1)
            steps.append((drafted, rng.randrange(drafted + 1)))
        now = info(steps, tokens=len(steps) * 2)
        told.append(sample(before, now, 1.0))
        before = now

    def total(name: str) -> Any:
        return sum(one[name] for one in told)

    assert total("steps") == len(steps) == before.acceptance.num_spec_steps
    assert total("accepted") == before.acceptance.num_accepted_draft_tokens
    assert total("generation_tokens") == before.generation_tokens_total
    histograms = [one["histogram"] for one in told if one["steps"]]
    assert [sum(h) for h in zip_longest(*histograms, fillvalue=0)] == list(
        before.acceptance.acceptance_histogram
    )
