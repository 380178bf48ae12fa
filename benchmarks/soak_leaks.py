"""Whether what a soak measured over time stays flat, and whether everything is let go at the end.

Knows series of numbers and tolerances; takes no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far the last part's median may lie above the first part's."""

    share: float
    amount: float

    def above(self, value: float) -> float:
        return value * (1 + self.share) + self.amount


# Allocators keep what they freed, and a cache that is filled for the first time grows.
TOLERANCES: Mapping[str, Tolerance] = {
    "rss_mib": Tolerance(share=0.05, amount=32),
    "threads": Tolerance(share=0, amount=4),
    "fds": Tolerance(share=0, amount=8),
}
# Share of the load's time that counts as warm-up, and the part of the rest that each end is.
WARMUP = 0.2
PART = 1 / 3
MIN_SAMPLES = 6
PEAK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, `at` seconds after the load began."""

    at: float
    value: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Medians of the first and last part of a series behind its warm-up."""

    process: str
    measure: str
    first: float
    last: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.last <= self.allowed

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Something counted once the load is over; at most `allowed` is right."""

    what: str
    found: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.found <= self.allowed

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def peaks(points: Sequence[Point], window: float = PEAK_SECONDS) -> list[Point]:
    """Each point raised to the highest of the `window` seconds before it.

    For a process that is killed and started again: what it needs while it starts says nothing.
    """
    return [
        Point(one.at, max(p.value for p in points if one.at - window <= p.at <= one.at))
        for one in points
    ]


def trend(process: str, measure: str, points: Sequence[Point], seconds: float) -> Trend:
    """The trend of a series over a load of `seconds`.

    Raises ValueError where too few samples lie behind the warm-up to tell.
    """
    warm = [point for point in points if point.at >= WARMUP * seconds]
    count = int(len(warm) * PART)
    if len(warm) < MIN_SAMPLES:
        raise ValueError(
            f"{process} {measure}: {len(warm)} samples behind the warm-up; "
            f"{MIN_SAMPLES} are needed to see a trend"
        )
    values = [point.value for point in sorted(warm, key=lambda point: point.at)]
    first, last = median(values[:count]), median(values[-count:])
    return Trend(process, measure, first, last, TOLERANCES[measure].above(first))
