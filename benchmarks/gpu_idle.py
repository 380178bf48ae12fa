"""How idle a device was in a traced stretch of time, and what the host did meanwhile.

Knows launches and marks, whose clock is the same; neither takes them nor shows them. The device
counts as busy from the first kernel of a launch to its last: the pauses between a graph's kernels
are the device's own. Kernels alone are told beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.device_profile import Profile
from benchmarks.intervals import (
    Interval,
    Mark,
    covered,
    gaps,
    innermost,
    merged,
    most_first,
    shares,
)

RUN = "engine: run"
MS = 1e-6
LARGEST = 10


@dataclass(frozen=True, slots=True)
class Gap:
    """The device idled for `ms`, `at_ms` after the trace began; `host` has ms by what was done."""

    at_ms: float
    ms: float
    host: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"at_ms": self.at_ms, "ms": self.ms, "host": self.host}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Gap:
        return cls(values["at_ms"], values["ms"], values["host"])


@dataclass(frozen=True, slots=True)
class Idle:
    """One trace: shares of `seconds`; `host` has ms of all gaps by what was done in them."""

    seconds: float
    idle: float
    kernels: float
    steps: int
    gaps: int
    host: dict[str, float]
    largest: tuple[Gap, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "idle_share": self.idle,
            "kernel_share": self.kernels,
            "steps": self.steps,
            "gaps": self.gaps,
            "host_ms_in_gaps": self.host,
            "largest_gaps": [gap.to_json() for gap in self.largest],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Idle:
        return cls(
            values["seconds"],
            values["idle_share"],
            values["kernel_share"],
            values["steps"],
            values["gaps"],
            values["host_ms_in_gaps"],
            tuple(Gap.from_json(gap) for gap in values["largest_gaps"]),
        )


def idle(profile: Profile, marks: Sequence[Mark]) -> Idle:
    """Of everything from the first to the last thing that the device did.

    Where no device was seen, the engine runs on the host: its time in `RUN` is the device's. Raises
    ValueError where nothing ran at all.
    """
    if profile.kernels:
        spans = [Interval(launch.start, launch.end) for launch in profile.launches()]
        kernels = [Interval(kernel.start, kernel.end) for kernel in profile.kernels]
    else:
        spans = kernels = [Interval(mark.start, mark.end) for mark in marks if mark.name == RUN]
    busy = merged(spans)
    if not busy:
        raise ValueError("nothing ran while it was traced")
    window = Interval(busy[0].start, busy[-1].end)
    flat = innermost([*marks, *_inside(profile.calls, marks)])
    open_ones = gaps(busy, window)
    by_host: dict[str, int] = {}
    told = []
    for gap in open_ones:
        parts = shares(gap, flat)
        for name, spent in parts.items():
            by_host[name] = by_host.get(name, 0) + spent
        told.append((gap, parts))
    told.sort(key=lambda pair: -pair[0].length)
    return Idle(
        seconds=window.length * 1e-9,
        idle=1 - covered(busy, window) / window.length,
        kernels=covered(merged(kernels), window) / window.length,
        steps=sum(mark.name == RUN and window.overlap(mark.start, mark.end) > 0 for mark in marks),
        gaps=len(open_ones),
        host=_ms(most_first(by_host)),
        largest=tuple(
            Gap(round((gap.start - window.start) * MS, 3), round(gap.length * MS, 3), _ms(parts))
            for gap, parts in told[:LARGEST]
        ),
    )


def _inside(calls: Sequence[Mark], marks: Sequence[Mark]) -> list[Mark]:
    """Calls to the device that began in the engine: other threads' would cut into its marks."""
    runs = merged(Interval(mark.start, mark.end) for mark in marks if mark.name == RUN)
    ends = iter(runs)
    run = next(ends, None)
    found = []
    for call in sorted(calls, key=lambda call: call.start):
        while run is not None and run.end <= call.start:
            run = next(ends, None)
        if run is not None and call.start >= run.start:
            found.append(Mark(call.name, call.start, min(call.end, run.end)))
    return found


def _ms(amounts: dict[str, int]) -> dict[str, float]:
    return {name: round(spent * MS, 3) for name, spent in amounts.items()}
