"""How long a call of the engine takes: by the host's clock, and on the device by launch.

Knows `TorchEngine.run` and the profiler's launches; does not know the steps that are timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.device_profile import Launch, profiled, steps
from benchmarks.intervals import Interval

if TYPE_CHECKING:
    from verifier_service.engines.base import Chunk
    from verifier_service.engines.torch_engine import TorchEngine

MS = 1e-6
PROFILED_CALLS = 3


def spent(engine: TorchEngine, chunks: list[Chunk], calls: int) -> dict[str, Any]:
    """Milliseconds of a call by the host's clock: the median, and the middle half."""
    for _ in range(3):
        engine.run(chunks)
    times = []
    for _ in range(calls):
        began = time.perf_counter_ns()
        engine.run(chunks)
        times.append((time.perf_counter_ns() - began) * MS)
    times.sort()
    return {
        "run_ms": round(statistics.median(times), 3),
        "middle_half_ms": [round(times[len(times) // 4], 3), round(times[-1 - len(times) // 4], 3)],
    }


def on_device(
    engine: TorchEngine, cases: Mapping[str, list[Chunk]], device: str
) -> dict[str, dict[str, Any]]:
    """Of each case a call's milliseconds in its largest launch, the forward's, and in all others.

    `*_ms` is in which any kernel ran, `forward_span_ms` the time from its first to its last. Empty
    on a CPU, where nothing is launched. All cases share a profile, whose beginning takes longest.
    """
    if device != "cuda":
        return {}
    names: list[str] = []
    calls: list[Interval] = []
    with profiled(device) as profile:
        for name, chunks in cases.items():
            for _ in range(PROFILED_CALLS):
                began = time.time_ns()
                engine.run(chunks)
                calls.append(Interval(began, time.time_ns()))
                names.append(name)
    launched: dict[str, list[list[Launch]]] = {name: [] for name in cases}
    for name, launches in zip(names, steps(profile.launches(), calls), strict=True):
        if launches:
            launched[name].append(launches)
    return {name: medians(each) for name, each in launched.items() if each}


def medians(calls: Sequence[list[Launch]]) -> dict[str, float]:
    forwards = [max(launches, key=lambda launch: launch.busy) for launches in calls]
    others = [
        sum(launch.busy for launch in launches) - forward.busy
        for launches, forward in zip(calls, forwards, strict=True)
    ]
    found = {
        "forward_ms": [forward.busy for forward in forwards],
        "forward_span_ms": [forward.end - forward.start for forward in forwards],
        "others_ms": others,
    }
    return {name: round(statistics.median(values) * MS, 3) for name, values in found.items()}
