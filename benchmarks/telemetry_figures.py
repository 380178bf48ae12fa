"""What turns say of tracing's cost: medians of log ratios, with bootstrap intervals.

Knows numbers and turns; runs nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.processor_time import VERIFIER
from benchmarks.telemetry_turns import Quad, Turn, quads_of
from outrider.bench.statistics import percentile

RESAMPLES = 4000
# Fewer groups than this say too little of a distribution to resample them.
MIN_GROUPS = 6
# The cost that is to be told from none.
BAR = 0.01
# A window from which other programs took more of the machine than this says nothing of tracing.
MOST_FOREIGN = 0.05
# Of the services' processor time, what is told from the model's noise.
ALL_BUT_MODEL = "all but the model"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median of `count` values in `groups` groups, and its 95 % interval.

    `low` and `high` are None where there are too few groups.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    groups: int

    @classmethod
    def of(cls, groups: Sequence[Sequence[float]]) -> Estimate | None:
        """Groups are drawn anew as wholes, for what is in one may be alike; None of no values."""
        groups = [group for group in groups if group]
        values = [value for group in groups for value in group]
        if not values:
            return None
        if len(groups) < MIN_GROUPS:
            return cls(median(values), None, None, len(values), len(groups))
        draw = random.Random(0)
        drawn = sorted(
            median([value for group in draw.choices(groups, k=len(groups)) for value in group])
            for _ in range(RESAMPLES)
        )
        low, high = percentile(drawn, 2.5), percentile(drawn, 97.5)
        return cls(median(values), low, high, len(values), len(groups))


@dataclass(frozen=True, slots=True)
class Level:
    """All that is known at one number of clients.

    `change` is of the log of tokens a second, traced over untraced, of the pairs that other
    programs left alone; `unfiltered` of all `pairs` pairs, `control` of neighbours in the same
    mode; None where no pair is left. `middle_half` are the quartiles of all single pairs.
    `processor_ms` is by service, for each request. Speeds are medians of windows, in tokens a
    second.
    """

    clients: int
    change: Estimate | None
    unfiltered: Estimate
    control: Estimate | None
    middle_half: tuple[float, float]
    speed: float
    traced_speed: float
    window_s: float
    request_s: float
    foreign: float
    processor_ms: dict[str, Estimate]
    other_answers: int
    other_rounds: int

    @property
    def verdict(self) -> str:
        """Whether the cost is under the bar, beyond doubt, or over it, or neither."""
        if self.change is None or self.change.low is None or self.change.high is None:
            return "too few pairs"
        if self.change.low > math.log1p(-BAR):
            return f"under {BAR:.0%}"
        return f"over {BAR:.0%}" if self.change.high < math.log1p(-BAR) else "not resolved"


def level_of(turns: Sequence[Turn], clients: int) -> Level | None:
    """None before the first quad."""
    quads = quads_of(turns, clients)
    halves = [half for quad in quads for half in quad.neighbours(math.inf)]
    unfiltered = Estimate.of(halves)
    if unfiltered is None:
        return None
    ratios = sorted(ratio for half in halves for ratio in half)
    plain = [turn for quad in quads for turn in quad.turns if not turn.traced]
    traced = [turn for quad in quads for turn in quad.turns if turn.traced]
    seconds = median(second for turn in plain for second in turn.seconds)
    return Level(
        clients=clients,
        change=Estimate.of([half for quad in quads for half in quad.neighbours(MOST_FOREIGN)]),
        unfiltered=unfiltered,
        control=Estimate.of([quad.same_mode(MOST_FOREIGN) for quad in quads]),
        middle_half=(percentile(ratios, 25), percentile(ratios, 75)),
        speed=median(speed for turn in plain for speed in turn.speeds),
        traced_speed=median(speed for turn in traced for speed in turn.speeds),
        window_s=seconds,
        request_s=seconds / clients,
        foreign=median(share for turn in (*plain, *traced) for share in turn.foreign),
        processor_ms=_processor(quads),
        other_answers=sum(quad.other_answers() for quad in quads),
        other_rounds=sum(quad.other_rounds() for quad in quads),
    )


def as_cost(log_ratio: float) -> float:
    """The share of the speed that is lost; below 0 where it is won."""
    return 0.0 - math.expm1(log_ratio)


def _processor(quads: Sequence[Quad]) -> dict[str, Estimate]:
    each = [quad.processor_ms() for quad in quads]
    for spent in each:
        spent[ALL_BUT_MODEL] = sum(ms for name, ms in spent.items() if name != VERIFIER)
    found: dict[str, Estimate] = {}
    for name in each[0]:
        estimate = Estimate.of([[spent[name]] for spent in each])
        assert estimate is not None
        found[name] = estimate
    return found
