"""How counts of rows lean on each other: what is known of one says something about its neighbours.

Knows knots, how well each is known and what it takes as a factor on its profiled seconds; knows no
seconds and no history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verifier_service.cost_profile import Floats, nearness

# Below how many decayed observations a count is as good as not measured: a factor that one slow
# step left would otherwise keep a count from being tried again.
FORGOTTEN = 0.05
# Most observations that a count of which nothing is known takes from its neighbours.
_MOST_LENT = 2.0


@dataclass(frozen=True, slots=True)
class _Measured:
    """Some knots: which (a mask's bytes), their places and rows [n], nearness among them [n, n]."""

    mask: bytes
    places: NDArray[np.intp]
    rows: Floats
    near: Floats


class Pooling:
    """Factors of all `knots` from those that were measured lately. Not thread-safe."""

    __slots__ = ("_knots", "_measured", "_nearness")

    def __init__(self, knots: Floats, near: Floats | None = None) -> None:
        self._knots = knots
        self._nearness = nearness(knots) if near is None else near
        self._measured = self._among(np.zeros(len(knots), dtype=np.bool_))

    def derived(self) -> Pooling:
        """Another one for the same knots."""
        return Pooling(self._knots, self._nearness)

    def factors(self, known: Floats, own: Floats) -> Floats:
        """What each knot takes: [knots], the caller's own.

        `known` are decayed observations of each and `own` what these say: both [knots], read only
        where more than FORGOTTEN is known, of one knot at least.
        """
        among = known > FORGOTTEN
        # The same knots as a step ago, nearly always: nothing is gathered anew then.
        if among.tobytes() != self._measured.mask:
            self._measured = self._among(among)
        measured = self._measured
        known, own = known[measured.places], own[measured.places]
        # What is known nearby, and the mean of the factors there.
        nearby = measured.near @ known
        lent = np.minimum(nearby, _MOST_LENT / (1.0 + known))
        weighted = known * own
        others = measured.near @ weighted / np.maximum(nearby, 1e-9)
        pooled: Floats = np.interp(
            self._knots, measured.rows, (weighted + lent * others) / (known + lent)
        )
        return pooled

    def _among(self, mask: NDArray[np.bool_]) -> _Measured:
        places = mask.nonzero()[0]
        near = self._nearness[places[:, None], places]
        return _Measured(mask.tobytes(), places, self._knots[places], near)
