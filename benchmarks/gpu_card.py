"""The graphics card: what it is, and how busy it was while something was measured.

Knows nvidia-smi and nothing of what runs on the card. Its settings are only read.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType

from benchmarks.systems import Answer, System, Work
from outrider.errors import OperationError

COMMAND = "nvidia-smi"
DESCRIBED = {"gpu": "name", "gpu_memory_mib": "memory.total", "driver": "driver_version"}
# Query field -> name of the reading.
WATCHED = {
    "utilization.gpu": "gpu_busy_percent",
    "clocks.sm": "gpu_sm_mhz",
    "power.draw": "gpu_power_w",
}
PERIOD_MS = 200


def describe_card() -> dict[str, str]:
    """Name, memory and driver of the first card.

    Raises FileNotFoundError without nvidia-smi, OperationError where it finds no card.
    """
    query = ",".join(DESCRIBED.values())
    answer = subprocess.run(
        [COMMAND, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip()
        raise OperationError(f"{COMMAND} ended with code {answer.returncode}: {said}")
    return parse_description(answer.stdout)


def parse_description(text: str) -> dict[str, str]:
    """One line of comma-separated values for each card; the first card's by our names."""
    values = [value.strip() for value in text.splitlines()[0].split(",")]
    return dict(zip(DESCRIBED, values, strict=True))


@dataclass(slots=True)
class Samples:
    """Readings with the time (monotonic seconds) at which they came in."""

    items: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def add(self, now: float, line: str) -> None:
        """One line of nvidia-smi's; fields that the card does not know are left out."""
        values: dict[str, float] = {}
        for name, text in zip(WATCHED.values(), line.split(","), strict=True):
            try:
                values[name] = float(text)
            except ValueError:
                continue
        self.items.append((now, values))

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Mean of each reading; empty where nothing was read in that time."""
        inside = [values for now, values in self.items if begin <= now <= end]
        means: dict[str, float] = {}
        for name in WATCHED.values():
            some = [values[name] for values in inside if name in values]
            if some:
                means[name] = sum(some) / len(some)
        return means


class CardWatch:
    """A context in which the card is read several times a second by a process of its own."""

    def __init__(self) -> None:
        self.samples = Samples()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> CardWatch:
        query = ",".join(WATCHED)
        self._process = subprocess.Popen(
            [
                *(COMMAND, "-i", "0", "-lms", str(PERIOD_MS)),
                *(f"--query-gpu={query}", "--format=csv,noheader,nounits"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name="card-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None and self._thread is not None
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self.samples.add(time.monotonic(), line)


class Watched:
    """A system whose answers also carry what the card did meanwhile."""

    def __init__(self, system: System, samples: Samples) -> None:
        self._system = system
        self._samples = samples

    def generate(self, work: Work) -> Answer:
        answer = self._system.generate(work)
        end = time.monotonic()
        seen: Mapping[str, float] = self._samples.between(end - answer.seconds, end)
        return replace(answer, readings={**answer.readings, **seen})
