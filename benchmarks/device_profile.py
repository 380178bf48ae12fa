"""What a device did while torch's profiler watched, and what the host asked of it.

Knows the profiler's events. Their times are ns since the epoch, as `time.time_ns` tells them. The
kernels of a replayed graph carry its launch's correlation, so a launch is what they span: between
two kernels of one graph nobody is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.intervals import Interval, Mark, merged

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_BY_HOST = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class Kernel:
    """Something that ran on the device, and which call of the host's it belongs to."""

    name: str
    start: int
    end: int
    correlation: int


@dataclass(frozen=True, slots=True)
class Launch:
    """All that one call of the host's set going; `kernels` are in order of their start."""

    start: int
    end: int
    kernels: tuple[Kernel, ...]

    @property
    def busy(self) -> int:
        """Nanoseconds in which at least one of its kernels ran."""
        runs = merged(Interval(kernel.start, kernel.end) for kernel in self.kernels)
        return sum(run.length for run in runs)


@dataclass(slots=True)
class Profile:
    """Filled when the `profiled` context ends; empty where there is no device."""

    kernels: list[Kernel] = field(default_factory=list)
    calls: list[Mark] = field(default_factory=list)

    def launches(self) -> list[Launch]:
        """In order of their start."""
        by_call: dict[int, list[Kernel]] = {}
        for kernel in self.kernels:
            by_call.setdefault(kernel.correlation, []).append(kernel)
        found = [_launch(kernels) for kernels in by_call.values()]
        return sorted(found, key=lambda launch: launch.start)

    def read(self, events: Iterable[Any]) -> None:
        """Take in a profiler's raw events."""
        for event in events:
            kind = event.activity_type()
            start = event.start_ns()
            end = start + event.duration_ns()
            if kind in _ON_DEVICE:
                self.kernels.append(Kernel(event.name(), start, end, event.correlation_id()))
            elif kind in _BY_HOST:
                self.calls.append(Mark(event.name(), start, end))


@contextmanager
def profiled(device: str, chrome_trace: Path | None = None) -> Iterator[Profile]:
    """Watch `device` ("cuda", or "cpu", of which nothing is seen) while the body runs.

    `chrome_trace` is a file to write for chrome://tracing, compressed where it ends in .gz.
    """
    profile = Profile()
    if device != "cuda":
        yield profile
        return
    import torch
    from torch.profiler import ProfilerActivity

    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both) as profiler:
        yield profile
        torch.cuda.synchronize()
    inner = profiler.profiler
    assert inner is not None and inner.kineto_results is not None
    profile.read(inner.kineto_results.events())
    if chrome_trace is not None:
        profiler.export_chrome_trace(str(chrome_trace))


def warm_profiler(device: str) -> None:
    """The first profile of a process takes seconds to begin."""
    if device != "cuda":
        return
    import torch

    with profiled(device):
        torch.zeros(8, device=device).add_(1)


def steps(launches: Sequence[Launch], calls: Sequence[Interval]) -> list[list[Launch]]:
    """The launches that began inside each of `calls`, which are in order and disjoint."""
    found: list[list[Launch]] = [[] for _ in calls]
    waiting = iter(launches)
    launch = next(waiting, None)
    for number, call in enumerate(calls):
        while launch is not None and launch.start < call.end:
            if launch.start >= call.start:
                found[number].append(launch)
            launch = next(waiting, None)
    return found


def _launch(kernels: list[Kernel]) -> Launch:
    kernels.sort(key=lambda kernel: kernel.start)
    return Launch(kernels[0].start, max(kernel.end for kernel in kernels), tuple(kernels))
