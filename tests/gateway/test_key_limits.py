"""A key's requests a minute and at once, on a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.key_limits import KeyLimits
from gateway.keys import ApiKey


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(limits: KeyLimits, key: ApiKey) -> ApiError:
    with pytest.raises(ApiError) as caught:
        limits.enter(key)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return caught.value


def test_a_minutes_requests_then_one_at_a_time() -> None:
    clock, key = Clock(), ApiKey("a", b"", requests_per_minute=6)
    limits = KeyLimits([key], clock)
    for _ in range(6):
        limits.enter(key)
    error = refusal(limits, key)
    assert error.headers["Retry-After"] == "10"
    assert error.message == "key 'a' may send 6 requests a minute; try again in 10 s"
    clock.now += 9
    assert refusal(limits, key).headers["Retry-After"] == "1"
    clock.now += 1
    limits.enter(key)
    refusal(limits, key)


def test_what_is_not_used_is_kept_for_a_minute_and_no_longer() -> None:
    clock, key = Clock(), ApiKey("a", b"", requests_per_minute=3)
    limits = KeyLimits([key], clock)
    clock.now += 3600
    for _ in range(3):
        limits.enter(key)
    refusal(limits, key)


def test_at_once_is_until_they_leave() -> None:
    key = ApiKey("a", b"", max_concurrent_requests=2)
    limits = KeyLimits([key], Clock())
    limits.enter(key)
    limits.enter(key)
    assert "has 2 requests running, and may have 2" in refusal(limits, key).message
    limits.leave(key)
    limits.enter(key)
    assert limits.running(key) == 2


def test_a_refused_request_takes_no_place_and_no_share_of_the_minute() -> None:
    clock = Clock()
    key = ApiKey("a", b"", requests_per_minute=2, max_concurrent_requests=1)
    limits = KeyLimits([key], clock)
    limits.enter(key)
    for _ in range(5):
        refusal(limits, key)
    limits.leave(key)
    limits.enter(key)
    assert limits.running(key) == 1
    limits.leave(key)
    assert "a minute" in refusal(limits, key).message


def test_keys_do_not_share() -> None:
    one, other = (ApiKey(name, b"", requests_per_minute=1) for name in "ab")
    limits = KeyLimits([one, other], Clock())
    limits.enter(one)
    refusal(limits, one)
    limits.enter(other)


def test_a_key_without_limits_has_none() -> None:
    key = ApiKey("a", b"")
    limits = KeyLimits([key], Clock())
    for _ in range(1000):
        limits.enter(key)


@settings(deadline=None)
# Waits whose shares of a minute do not quite make up one request, rounded as they are.
@example(1, [0.11000405939103788, 0.0])
@given(st.integers(1, 120), st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=200))
def test_no_minute_has_more_than_twice_the_rate(rate: int, pauses: list[float]) -> None:
    """A bucket lets at most a full one and a minute's filling in within any minute."""
    clock, key = Clock(), ApiKey("a", b"", requests_per_minute=rate)
    limits = KeyLimits([key], clock)
    admitted: list[float] = []
    for pause in pauses:
        clock.now += pause
        try:
            limits.enter(key)
        except ApiError as error:
            # What it says is true: after so long one is let in.
            clock.now += int(error.headers["Retry-After"])
            limits.enter(key)
        admitted.append(clock.now)
    for begin in admitted:
        assert sum(begin <= moment < begin + 60 for moment in admitted) <= 2 * rate
