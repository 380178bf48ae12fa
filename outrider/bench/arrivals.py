"""When requests arrive in an open loop.

Knows rates and their scatter; sends nothing.
"""

from __future__ import annotations

import math
import random


def arrival_offsets(
    count: int, request_rate: float, *, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """Seconds after the start at which each of `count` requests is due, the first at 0.

    Gaps follow a gamma distribution of shape `burstiness` and mean 1/`request_rate`, as in
    `vllm bench serve`: 1 is a Poisson process, less is burstier, more is steadier. As there, the
    gaps are scaled so that the last request is due when that rate says. Infinite rate: all at 0.
    """
    if math.isinf(request_rate) or count < 2:
        return [0.0] * count
    draw = random.Random(seed)
    scale = 1.0 / (request_rate * burstiness)
    offsets = [0.0]
    for _ in range(count - 1):
        offsets.append(offsets[-1] + draw.gammavariate(burstiness, scale))
    wanted = (count - 1) / request_rate
    stretch = wanted / offsets[-1] if offsets[-1] > 0 else 0.0
    return [offset * stretch for offset in offsets]
