from __future__ import annotations

import random

import pytest

from outrider.backoff import Backoff


def test_doubles_to_the_cap() -> None:
    backoff = Backoff(0.1, 2.0, jitter=0.0)
    assert [backoff.next_delay() for _ in range(7)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    )


def test_reset_starts_again() -> None:
    backoff = Backoff(0.1, 2.0, jitter=0.0)
    backoff.next_delay()
    backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == pytest.approx(0.1)


def test_jitter_spreads_within_its_share() -> None:
    backoff = Backoff(1.0, 1.0, jitter=0.2, rng=random.Random(3))
    delays = [backoff.next_delay() for _ in range(200)]
    assert all(0.8 <= delay <= 1.2 for delay in delays)
    assert max(delays) - min(delays) > 0.2


@pytest.mark.parametrize(("first", "cap"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_bad_delays_are_refused(first: float, cap: float) -> None:
    with pytest.raises(ValueError, match="0 < first <= cap"):
        Backoff(first, cap)


def test_bad_jitter_is_refused() -> None:
    with pytest.raises(ValueError, match="jitter=1"):
        Backoff(1.0, 1.0, jitter=1.0)
