"""Lengths of time as people write them: `90s`, `15m`, `2h`, `30d`.

Knows units; does not know clocks.
"""

from __future__ import annotations

import re

from outrider.errors import InputError

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|w)")
_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def duration_s(value: str) -> float | None:
    """Seconds; None where it is no length of time."""
    match = _DURATION.fullmatch(value)
    return float(match[1]) * _UNIT_S[match[2]] if match else None


def parse_duration(value: str, option: str, least: str, most: str) -> float:
    """Seconds from `least` to `most`. Raises InputError naming `option`, value and bounds."""
    seconds = duration_s(value)
    low, high = duration_s(least), duration_s(most)
    assert low is not None
    assert high is not None
    if seconds is None or not low <= seconds <= high:
        raise InputError(
            f"{option}: {value[:64]!r} is no length of time from {least} to {most}; "
            "write 60s, 5m, 2h or 30d"
        )
    return seconds
