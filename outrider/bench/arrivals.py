"""When requests arrive in an open loop.

Knows rates and their scatter; sends nothing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum


class Strategy(StrEnum):
    """How a rate rises: by equal steps, or by equal factors."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that rises over a run, from `start` to `end` requests a second (both above 0)."""

    strategy: Strategy
    start: float
    end: float

    def rate(self, progress: float) -> float:
        """Requests a second at a part of the run, 0 to 1."""
        if self.strategy is Strategy.LINEAR:
            return self.start + (self.end - self.start) * progress
        return self.start * float((self.end / self.start) ** progress)


def arrival_offsets(
    count: int, request_rate: float, *, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """Seconds after the start at which each of `count` requests is due, the first at 0.

    Gaps follow a gamma distribution of shape `burstiness` and mean 1/`request_rate`, as in
    `vllm bench serve`: 1 is a Poisson process, less is burstier, more is steadier, infinite is
    even. As there, the gaps are scaled so that the last request is due when that rate says.
    Infinite rate: all at 0.
    """
    if math.isinf(request_rate) or count < 2:
        return [0.0] * count
    offsets = _offsets([request_rate] * (count - 1), burstiness, seed)
    wanted = (count - 1) / request_rate
    stretch = wanted / offsets[-1] if offsets[-1] > 0 else 0.0
    return [offset * stretch for offset in offsets]


def ramped_offsets(
    first: int, count: int, total: int, ramp: Ramp, *, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """The same for requests `first` and on of a run of `total`, at the rates that `ramp` has there.

    Gaps are drawn and not scaled, as in `vllm bench serve`.
    """
    rates = [ramp.rate(index / max(total - 1, 1)) for index in range(first + 1, first + count)]
    return _offsets(rates, burstiness, seed)


def _offsets(rates: list[float], burstiness: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    offsets = [0.0]
    for rate in rates:
        even = math.isinf(burstiness)
        gap = 1 / rate if even else draw.gammavariate(burstiness, 1 / (rate * burstiness))
        offsets.append(offsets[-1] + gap)
    return offsets
