"""Exponential backoff with jitter; knows seconds only."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from `first` to `cap` seconds, each spread by up to ±`jitter`."""

    def __init__(
        self, first: float, cap: float, *, jitter: float = 0.2, rng: random.Random | None = None
    ) -> None:
        if not 0 < first <= cap:
            raise ValueError(f"first={first}, cap={cap}: 0 < first <= cap is needed")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter={jitter}: 0 <= jitter < 1 is needed")
        self._first = first
        self._cap = cap
        self._jitter = jitter
        self._rng = rng or random.Random()
        self._next = first

    def next_delay(self) -> float:
        """The delay before the next attempt, in seconds."""
        delay = self._next
        self._next = min(self._cap, delay * 2)
        return delay * self._rng.uniform(1 - self._jitter, 1 + self._jitter)

    def reset(self) -> None:
        """The attempt was a success: start again at `first`."""
        self._next = self._first
