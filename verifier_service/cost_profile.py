"""The knots of a cost curve, from the medians that were measured at start.

Knows counts of rows and seconds; does not know what is learnt later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Counts of rows up to here are told apart; beyond, counts this ratio apart, up to the last.
DENSE, RATIO, LAST = 256, 1.1, 16_384

# How far away, in the logarithm of rows, a count lends a third of what one beside it does.
_NEAR = 0.15


def knots_of(profile: Mapping[int, float]) -> tuple[Floats, Floats]:
    """Counts of rows and their seconds, never falling: both [knots].

    Medians that fall with more rows are noise: neighbours are pooled until none does. Beyond what
    was profiled seconds rise as they did at its end. Raises ValueError for an empty profile, a
    count below 1 or a time that is not positive and finite.
    """
    if not profile:
        raise ValueError("cost profile is empty; it needs at least one measured count of rows")
    for rows, seconds in profile.items():
        if rows < 1:
            raise ValueError(f"cost profile has {rows} query tokens; allowed: 1 or more")
        if not 0.0 < seconds < float("inf"):
            raise ValueError(
                f"cost profile has {seconds} seconds at {rows} query tokens; "
                "allowed: positive and finite"
            )
    counts = sorted(profile)
    medians = never_falling([profile[count] for count in counts])
    knots = np.array(_counts(counts), dtype=np.float64)
    curve: Floats = np.interp(knots, counts, medians)
    if len(counts) > 1:
        slope = (medians[-1] - medians[-2]) / (counts[-1] - counts[-2])
    else:
        slope = medians[0] / counts[0]
    beyond: Floats = slope * np.maximum(knots - counts[-1], 0.0)
    return knots, curve + beyond


def consecutive(knots: Floats) -> int:
    """How many knots from the first on are 1 apart."""
    apart = np.flatnonzero(np.diff(knots) != 1.0)
    return int(apart[0]) + 1 if len(apart) else len(knots)


def nearness(knots: Floats) -> Floats:
    """How much each knot may lend each other, 0 to itself: [knots, knots], at most 1."""
    logs = np.log(knots)
    near: Floats = np.exp(-np.abs(logs[:, None] - logs) / _NEAR)
    np.fill_diagonal(near, 0.0)
    return near


def never_falling(values: Sequence[float], weights: Sequence[float] = ()) -> list[float]:
    """The nearest never-falling sequence, by weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights or [1.0] * len(values), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (high, m, i), (low, n, j) = pools[-2:]
            pools[-2:] = [((high * m + low * n) / (m + n), m + n, i + j)]
    return [mean for mean, _, size in pools for _ in range(size)]


def _counts(profiled: Sequence[int]) -> list[int]:
    """The counts that a table keeps, the profiled ones beyond the dense part among them."""
    counts = list(range(profiled[0], max(DENSE, profiled[0]) + 1))
    while counts[-1] < LAST:
        counts.append(math.ceil(counts[-1] * RATIO))
    return sorted({*counts, *profiled})
