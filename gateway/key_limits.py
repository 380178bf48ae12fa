"""How much each key may ask for: requests a minute, and at once.

Knows counts and time; does not know what is asked for. Counts are this gateway's own: behind
several, each lets as many in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.errors import ApiError
from gateway.keys import ApiKey

_CODE = "rate_limit_exceeded"
# Of a request: more than what shares of a minute are rounded by. Who waits as told gets in.
_ROUNDING = 1e-6


@dataclass(slots=True)
class _Usage:
    """What one key has left: `tokens` requests at `filled` (seconds), `running` ones out."""

    tokens: float
    filled: float
    running: int = 0


class KeyLimits:
    """A bucket for each key that holds a minute's requests and fills evenly.

    `clock` gives monotonic seconds.
    """

    def __init__(self, keys: Iterable[ApiKey], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        now = clock()
        self._usage = {key.name: _Usage(key.requests_per_minute or 0, now) for key in keys}

    def enter(self, key: ApiKey) -> None:
        """Let a request of `key` in; it must `leave`. Raises ApiError 429, taking nothing."""
        usage = self._usage[key.name]
        most = key.max_concurrent_requests
        if most is not None and usage.running >= most:
            raise ApiError(
                429,
                f"key {key.name!r} has {usage.running} requests running, and may have {most}; "
                "try again when one has ended",
                code=_CODE,
            )
        rate = key.requests_per_minute
        if rate is not None:
            now = self._clock()
            usage.tokens = min(rate, usage.tokens + (now - usage.filled) * rate / 60)
            usage.filled = now
            if usage.tokens < 1 - _ROUNDING:
                wait = math.ceil((1 - usage.tokens) * 60 / rate)
                raise ApiError(
                    429,
                    f"key {key.name!r} may send {rate} requests a minute; try again in {wait} s",
                    code=_CODE,
                    headers={"Retry-After": str(wait)},
                )
            usage.tokens = max(usage.tokens - 1, 0)
        usage.running += 1

    def leave(self, key: ApiKey) -> None:
        """A request that was let in is over."""
        self._usage[key.name].running -= 1

    def running(self, key: ApiKey) -> int:
        """How many of its requests are in."""
        return self._usage[key.name].running
