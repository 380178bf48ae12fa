"""Where a captured function may be cut into parts that are launched one behind the other.

The host needs some 0.8 us for each kernel of a capture before the device begins with the first one,
0.25 ms for an 8B model's forward. Cut behind its first layers, the device works on these while the
host launches the rest. Knows neither captures nor models: what can be cut calls `seam`, and does
nothing but that where nobody cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Behind so many layers: what comes next is launched while these are computed, even where a layer
# takes the device 20 us.
LAYERS = (2, 8)

_cuts: list[Callable[[], None]] = []


def seam() -> None:
    """Whoever captures may cut here."""
    if _cuts:
        _cuts[-1]()


@contextmanager
def cutting(cut: Callable[[], None]) -> Iterator[None]:
    """Have `cut` called at all seams meanwhile."""
    _cuts.append(cut)
    try:
        yield
    finally:
        _cuts.pop()
