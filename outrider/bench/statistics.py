"""Summaries of measured values, and ratios with their spread.

Knows numbers; does not know what they measure. Random choices come from a given seed.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

RESAMPLES: Final = 1000
CONFIDENCE: Final = 0.95
# Fewer units than this say too little of a distribution to resample them.
MIN_UNITS: Final = 5


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, median, standard deviation and percentiles of values in their own unit."""

    count: int
    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...] = ()


def summarise(values: Sequence[float], percentiles: Sequence[float] = ()) -> Summary | None:
    """The summary of `values`; None where there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Summary(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        median=statistics.median(ordered),
        std=statistics.pstdev(ordered),
        percentiles=tuple((p, percentile(ordered, p)) for p in percentiles),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile (0 to 100) of sorted values, interpolated linearly."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Ratio:
    """`value` with its spread from `low` to `high`; `spread` says what that is."""

    value: float
    low: float
    high: float
    spread: str

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "spread": self.spread}


def ratio_of_sums(
    pairs: Sequence[tuple[float, float]], *, units: str, seed: int = 0
) -> Ratio | None:
    """Sum of the first members over the sum of the second; None where that is no number.

    The spread is a 95 % bootstrap interval: `pairs` are drawn anew with replacement. With fewer
    than five it is the lowest and highest ratio of one pair. `units` names what a pair is, in the
    plural.
    """
    return _with_spread([pair for pair in pairs if min(pair) > 0], _ratio, units, seed)


def speed_ratio(
    blocks: Sequence[tuple[float, float, float, float]], *, units: str, seed: int = 0
) -> Ratio | None:
    """How many times faster the first of two runs is, over blocks that both measured.

    Each block is (amount, seconds, amount, seconds) of the first and of the second run; a speed is
    the sum of amounts over the sum of seconds. Spread and None as for `ratio_of_sums`.
    """
    return _with_spread([block for block in blocks if min(block) > 0], _speed, units, seed)


_Unit = TypeVar("_Unit")


def _with_spread(
    usable: Sequence[_Unit], value_of: Callable[[Sequence[_Unit]], float], units: str, seed: int
) -> Ratio | None:
    if not usable:
        return None
    value = value_of(usable)
    if len(usable) == 1:
        return Ratio(value, value, value, f"no spread: too few {units}")
    if len(usable) < MIN_UNITS:
        each = sorted(value_of([unit]) for unit in usable)
        return Ratio(value, each[0], each[-1], f"lowest and highest of {len(usable)} {units}")
    draw = random.Random(seed)
    drawn = sorted(value_of(draw.choices(usable, k=len(usable))) for _ in range(RESAMPLES))
    tail = 100 * (1 - CONFIDENCE) / 2
    return Ratio(
        value,
        percentile(drawn, tail),
        percentile(drawn, 100 - tail),
        f"95 % bootstrap over {len(usable)} {units}",
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return math.fsum(a for a, _ in pairs) / math.fsum(b for _, b in pairs)


def _speed(blocks: Sequence[tuple[float, float, float, float]]) -> float:
    first = math.fsum(b[0] for b in blocks) / math.fsum(b[1] for b in blocks)
    return first / (math.fsum(b[2] for b in blocks) / math.fsum(b[3] for b in blocks))
