"""Processor time of `outrider serve`'s services, thread by thread, and of all other programs.

Knows /proc; does not know what the services do meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak_watch import Watch

VERIFIER = "verifier"
# The verifier without its busiest threads, one for each core: these compute the model.
VERIFIER_BESIDES = "verifier besides the model"


@dataclass(frozen=True, slots=True)
class Reading:
    """At `at_ns`: nanoseconds that each thread has run, by (service, thread id).

    `busy_ns` is what all programs have run since the machine started, and what the machine itself
    was kept waiting; `rest_ns` what this program has and `outrider serve` besides its services.
    """

    at_ns: int
    threads: Mapping[tuple[str, int], int]
    busy_ns: int
    rest_ns: int

    def since(self, earlier: Reading, cores: int) -> dict[str, float]:
        """Milliseconds of each service since `earlier`; a thread that has ended is not seen.

        The model's threads are told from the verifier's others by being the `cores` busiest ones.
        """
        spent: dict[str, list[int]] = {}
        for (service, thread), now in self.threads.items():
            before = earlier.threads.get((service, thread), 0)
            spent.setdefault(service, []).append(now - before)
        sums = {service: sum(threads) / 1e6 for service, threads in sorted(spent.items())}
        if VERIFIER in spent:
            sums[VERIFIER_BESIDES] = sum(sorted(spent[VERIFIER])[:-cores]) / 1e6
        return sums

    def foreign_since(self, earlier: Reading, cores: int) -> float:
        """The share of the machine's time since `earlier` that other programs took."""
        spent = self.since(earlier, cores)
        own = sum(ms for name, ms in spent.items() if name != VERIFIER_BESIDES) * 1e6
        own += self.rest_ns - earlier.rest_ns
        foreign = self.busy_ns - earlier.busy_ns - own
        return max(0.0, foreign / ((self.at_ns - earlier.at_ns) * cores))


def read(watch: Watch) -> Reading:
    """Of all services that run now."""
    threads: dict[tuple[str, int], int] = {}
    for service in watch.services():
        threads |= {(service.name, thread): ran for thread, ran in _threads(watch, service.pid)}
    rest = time.process_time_ns() + sum(ran for _, ran in _threads(watch, watch.serve_pid))
    return Reading(time.monotonic_ns(), threads, busy_ns((watch.proc / "stat").read_text()), rest)


def busy_ns(stat: str) -> int:
    """What /proc/stat's text counts as neither idle nor waiting for a disk, of all processors."""
    user, nice, system, _idle, _disk, irq, soft, stolen = map(int, stat.split()[1:9])
    ticks = user + nice + system + irq + soft + stolen
    return ticks * (10**9 // os.sysconf("SC_CLK_TCK"))


def _threads(watch: Watch, pid: int) -> list[tuple[int, int]]:
    folder = watch.proc / str(pid) / "task"
    found = ((int(thread), _ran_ns(folder / thread / "schedstat")) for thread in _names(folder))
    return [(thread, ran) for thread, ran in found if ran is not None]


def _names(folder: Path) -> list[str]:
    """None of a process that has just ended."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _ran_ns(path: Path) -> int | None:
    """None where the thread has just ended."""
    try:
        return int(path.read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return None
