"""Synthetic recordings: sequences whose every position has an offer, and prices for their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from verifier_service.simulation.policies import Load
from verifier_service.simulation.recording import Header, Offer, RecordedRound, RecordedStep
from verifier_service.simulation.traces import traces_of

K = 8
PROFILED = (1, 2, 3, 5, 9, 17, 33)


@dataclass(frozen=True, slots=True)
class Table:
    """Seconds of a step by its rows, linear between what was measured and flat below it."""

    points: Mapping[int, float]

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        counts = sorted(self.points)
        known = [self.points[count] for count in counts]
        beyond = max(rows - counts[-1], 0)
        slope = (known[-1] - known[-2]) / (counts[-1] - counts[-2])
        return float(np.interp(rows, counts, known)) + beyond * slope


# A GPU: 5.2 ms for a row; a step of 128 x 5 rows takes 1.6 times one of 128 x 1.
GPU = Table({1: 5.2e-3, 5: 5.25e-3, 40: 5.7e-3, 128: 7.2e-3, 640: 11.52e-3, 1152: 17.5e-3})
# The same with little room: compute-bound from 32 rows on.
SMALL_GPU = Table({1: 5.2e-3, 32: 5.8e-3, 128: 14.0e-3, 1152: 104e-3})
# A CPU's kernels: two cores, a small model.
CPU = Table({1: 20e-3, 5: 24e-3, 8: 26e-3, 16: 36e-3, 32: 50e-3, 64: 82e-3, 128: 150e-3})
# Every row costs nearly the same: drafts pay only where nearly all are accepted.
LINEAR = Table({1: 3e-3, 2: 5e-3, 64: 129e-3})
TABLES = {"gpu": GPU, "small-gpu": SMALL_GPU, "cpu": CPU, "linear": LINEAR}

# (position in the answer, sequence) -> chance that a draft there is right.
Acceptance = Callable[[int, int], float]


def steady(chance: float) -> Acceptance:
    return lambda _position, _sequence: chance


def phases(length: int = 120) -> Acceptance:
    """Text that repeats itself in turns, each sequence at its own time."""
    return lambda position, sequence: 0.92 if (position // length + sequence) % 2 else 0.05


def together(length: int = 120) -> Acceptance:
    """All sequences change at once."""
    return lambda position, _sequence: 0.92 if position // length % 2 else 0.05


def mixture(_position: int, sequence: int) -> float:
    return 0.9 if sequence % 2 else 0.05


def fading(position: int, _sequence: int) -> float:
    """From copying to free text, slowly."""
    return max(0.95 - position / 400.0, 0.0)


def load(
    acceptance: Acceptance,
    table: Table,
    *,
    batch: int,
    tokens: int,
    wait: float = 0.0,
    noise: float = 0.03,
    sequences: int = 0,
    sampled: bool = False,
    seed: int = 1,
) -> Load:
    """`sequences` answers (0: four for each of `batch` at a time) of `tokens` tokens.

    Whether the draft of a position is right is drawn once, so that all policies meet the same.
    """
    rng = np.random.default_rng(seed)
    steps: list[RecordedStep] = []
    count = sequences or 4 * batch
    right = [
        rng.random(tokens + K) < [acceptance(position, s) for position in range(tokens + K)]
        for s in range(count)
    ]
    for position in range(tokens):
        rounds = []
        for sequence, outcomes in enumerate(right):
            ahead = outcomes[position : position + K]
            matched = K if ahead.all() else int(ahead.argmin())
            rounds.append(
                RecordedRound(
                    sequence,
                    100 + position,
                    K,
                    K,
                    not sampled,
                    1,
                    offers=(Offer("ngram", K, 3, matched),),
                )
            )
        steps.append(RecordedStep(0.02, 0.0, 0.0, count, 0, 0, tuple(rounds)))
    profile = {rows: table.seconds(rows, 1, 0) for rows in PROFILED}
    factors = np.exp(rng.normal(0.0, noise, 997))
    return Load(
        header=Header(K, profile),
        traces=traces_of(steps, K),
        cost=table,
        concurrency=batch,
        noise=tuple(factors.tolist()),
        asking=lambda _step: wait,
        drain=False,
    )
