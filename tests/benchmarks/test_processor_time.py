"""Whose processor time is whose, from a /proc that the test writes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from benchmarks.processor_time import VERIFIER_BESIDES, Reading, busy_ns, read
from benchmarks.soak_watch import Watch

MS = 10**6


def reading(at_ms: int, busy_ms: int, rest_ms: int, **threads: list[int]) -> Reading:
    """`threads` are milliseconds by service."""
    ran = {(s, n): ms * MS for s, each in threads.items() for n, ms in enumerate(each)}
    return Reading(at_ms * MS, ran, busy_ms * MS, rest_ms * MS)


def test_the_busiest_threads_of_a_verifier_compute_the_model() -> None:
    before = reading(0, 0, 0, verifier=[1000, 0, 7, 0], gateway=[5])
    after = reading(1000, 2000, 0, verifier=[1900, 800, 27, 3], gateway=[9])
    assert after.since(before, cores=2) == {
        "gateway": 4.0,
        "verifier": 1723.0,
        VERIFIER_BESIDES: 23.0,
    }


def test_a_thread_that_has_just_begun_counts_from_nothing() -> None:
    after = reading(1000, 0, 0, gateway=[9, 6])
    assert after.since(reading(0, 0, 0, gateway=[5]), cores=2) == {"gateway": 10.0}


def test_what_is_not_ours_is_foreign() -> None:
    before = reading(0, 0, 0, verifier=[0, 0, 0], gateway=[0])
    after = reading(1000, 1700, 100, verifier=[900, 400, 60], gateway=[40])
    assert after.foreign_since(before, cores=2) == pytest.approx((1700 - 1500) / 2000)


def test_the_kernels_rounding_never_makes_it_negative() -> None:
    before, after = reading(0, 0, 0, gateway=[0]), reading(1000, 40, 0, gateway=[45])
    assert after.foreign_since(before, cores=2) == 0.0


def test_idle_and_waiting_for_a_disk_are_not_busy() -> None:
    tick = 10**9 // os.sysconf("SC_CLK_TCK")
    stat = "cpu  1 20 300 99999 88888 4000 50000 600000 7 8\ncpu0 5 5 5 5 5 5 5 5 0 0\n"
    assert busy_ns(stat) == 654_321 * tick


def write_process(proc: Path, pid: int, command: list[str], threads: dict[int, int]) -> None:
    folder = proc / str(pid)
    for thread, ran in threads.items():
        (folder / "task" / str(thread)).mkdir(parents=True)
        (folder / "task" / str(thread) / "schedstat").write_text(f"{ran} 11 3\n")
    (folder / "cmdline").write_text("\0".join(command))


def test_every_thread_of_every_service_is_read(tmp_path: Path) -> None:
    write_process(tmp_path, 1, ["python", "-m", "outrider.cli", "serve"], {1: 500})
    write_process(tmp_path, 2, ["python", "-m", "outrider.cli", "gateway"], {2: 20, 21: 1})
    write_process(
        tmp_path, 3, ["python", "-m", "outrider.cli", "proposer", "--name=ngram"], {3: 30}
    )
    (tmp_path / "1" / "task" / "1" / "children").write_text("2 3 4")
    (tmp_path / "2" / "task" / "22").mkdir()  # A thread that ends while it is looked at.
    (tmp_path / "stat").write_text("cpu  1 0 0 0 0 0 0 0 0 0\n")
    found = read(Watch(1, proc=tmp_path))
    assert found.threads == {("gateway", 2): 20, ("gateway", 21): 1, ("ngram", 3): 30}
    assert found.rest_ns > 500


def test_the_kernel_tells_what_is_read() -> None:
    assert Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").exists()
    assert read(Watch(os.getpid())).busy_ns > 0
