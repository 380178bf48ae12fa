"""Watches the processes of `outrider serve` while it is loaded: memory, threads, descriptors.

Knows /proc and the services' command lines; what is too much is soak_leaks.py's business.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soak_leaks import MIB, Point

MEASURES = ("rss_mib", "threads", "fds")
_SERVICES = ("gateway", "verifier", "proposer")


@dataclass(frozen=True, slots=True)
class Service:
    """A child of `outrider serve`: `role` is its subcommand, `name` a proposer's own name."""

    pid: int
    role: str
    name: str
    listen: str


@dataclass(slots=True)
class Watch:
    """Samples every process; a restarted proposer goes on under its name."""

    serve_pid: int
    proc: Path = Path("/proc")
    series: dict[tuple[str, str], list[Point]] = field(default_factory=lambda: defaultdict(list))
    # Process ids seen under each name.
    pids: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def services(self) -> list[Service]:
        """The children that run now; one that has just ended or begun is left out."""
        found = []
        task = self.proc / str(self.serve_pid) / "task" / str(self.serve_pid) / "children"
        for pid in map(int, task.read_text().split()):
            service = self._service(pid)
            if service is not None:
                found.append(service)
        return found

    def sample(self, at: float) -> None:
        """One measurement of each process, `at` seconds after the load began."""
        everyone = [("serve", self.serve_pid), *((s.name, s.pid) for s in self.services())]
        for name, pid in everyone:
            measured = self.measure(pid)
            if measured is None:
                continue
            self.pids[name].add(pid)
            for measure, value in measured.items():
                self.series[name, measure].append(Point(at, value))

    def measure(self, pid: int) -> dict[str, float] | None:
        """The measures of a process now; None where it has ended."""
        folder = self.proc / str(pid)
        try:
            status = (folder / "status").read_text()
            descriptors = len(os.listdir(folder / "fd"))
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" not in fields:
            return None
        return {
            "rss_mib": int(fields["VmRSS"].split()[0]) * 1024 / MIB,
            "threads": float(fields["Threads"]),
            "fds": float(descriptors),
        }

    def _service(self, pid: int) -> Service | None:
        try:
            command = (self.proc / str(pid) / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            return None
        role = next((word for word in command[3:4] if word in _SERVICES), None)
        if role is None:
            return None
        options = dict(word.split("=", 1) for word in command if "=" in word)
        return Service(pid, role, options.get("--name", role), options.get("--listen", ""))


def kill(service: Service) -> bool:
    """SIGKILL; whether the process was still there."""
    try:
        os.kill(service.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
