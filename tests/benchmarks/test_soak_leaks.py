"""Leaks: trends over a load, and processes as /proc shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak_leaks import TOLERANCES, AtEnd, Point, peaks, trend
from benchmarks.soak_watch import Watch


def series(values: list[float]) -> list[Point]:
    return [Point(float(at), value) for at, value in enumerate(values)]


def test_a_flat_series_passes_whatever_its_warm_up_did() -> None:
    values = [100.0 + 20 * at for at in range(20)] + [500.0] * 80
    found = trend("verifier", "rss_mib", series(values), 100)
    assert found.passed
    assert (found.first, found.last) == (500, 500)


def test_steady_growth_fails() -> None:
    values = [500.0 + 3 * at for at in range(100)]
    found = trend("verifier", "rss_mib", series(values), 100)
    assert not found.passed
    assert found.last - found.first > 100


@pytest.mark.parametrize(("measure", "tolerated"), [("threads", 4), ("fds", 8)])
def test_tolerances_are_what_they_say(measure: str, tolerated: int) -> None:
    for growth, passed in ((tolerated, True), (tolerated + 1, False)):
        values = [10.0] * 60 + [10.0 + growth] * 40
        assert trend("gateway", measure, series(values), 100).passed is passed
    assert TOLERANCES["rss_mib"].above(100) == pytest.approx(137)


def test_a_single_spike_is_no_leak() -> None:
    values = [50.0] * 100
    values[90] = 5000.0
    assert trend("gateway", "rss_mib", series(values), 100).passed


def test_shrinking_is_no_leak() -> None:
    values = [50.0] * 50 + [20.0] * 50
    assert trend("gateway", "rss_mib", series(values), 100).passed


def test_a_restarting_process_is_judged_by_its_peaks() -> None:
    lives = [20.0, 50.0, 50.0, 50.0, 50.0] * 20
    raised = [point.value for point in peaks(series(lives), window=5)]
    assert raised[0] == 20.0
    assert set(raised[1:]) == {50.0}
    leaking = [20.0 + growth for growth in range(100)]
    assert not trend("ngram", "rss_mib", peaks(series(leaking), window=5), 100).passed


def test_too_few_samples_are_told() -> None:
    with pytest.raises(ValueError, match="3 samples behind the warm-up"):
        trend("gateway", "fds", series([1.0] * 4), 3)


def test_what_is_held_at_the_end() -> None:
    assert AtEnd("running requests", 0, 0).passed
    assert not AtEnd("running requests", 1, 0).passed


class Proc:
    """A folder like /proc with processes that are written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[int] = []

    def add(self, pid: int, command: list[str], rss_kb: int = 2048, fds: int = 3) -> None:
        process = self.folder / str(pid)
        (process / "fd").mkdir(parents=True, exist_ok=True)
        for number in range(fds):
            (process / "fd" / str(number)).touch()
        (process / "cmdline").write_text("\0".join(command) + "\0")
        (process / "status").write_text(f"Name:\tpython\nVmRSS:\t{rss_kb} kB\nThreads:\t7\n")

    def parent(self, pid: int, children: list[int]) -> None:
        task = self.folder / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "children").write_text(" ".join(map(str, children)) + " ")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path)
    python = ["python", "-m", "outrider.cli"]
    made.add(1, ["outrider", "serve", "m"])
    made.add(2, [*python, "proposer", "--name=ngram", "--listen=unix:/s/ngram.sock"])
    made.add(3, [*python, "verifier", "--listen=unix:/s/verifier.sock", "--", "/m"])
    made.add(4, [*python, "gateway", "--port=8000"], rss_kb=4096, fds=5)
    made.add(5, ["sh", "-c", "true"])
    # 6 has ended since it was listed.
    made.parent(1, [2, 3, 4, 5, 6])
    return made


def test_services_are_known_by_their_command_lines(proc: Proc) -> None:
    found = {s.name: (s.pid, s.role, s.listen) for s in Watch(1, proc.folder).services()}
    assert found == {
        "ngram": (2, "proposer", "unix:/s/ngram.sock"),
        "verifier": (3, "verifier", "unix:/s/verifier.sock"),
        "gateway": (4, "gateway", ""),
    }


def test_samples_of_a_restarted_process_go_on_under_its_name(proc: Proc) -> None:
    watch = Watch(1, proc.folder)
    watch.sample(0.0)
    proc.add(7, ["python", "-m", "outrider.cli", "proposer", "--name=ngram"], rss_kb=1024)
    proc.parent(1, [7, 3, 4])
    watch.sample(1.0)
    assert [p.value for p in watch.series["ngram", "rss_mib"]] == [2.0, 1.0]
    assert [p.value for p in watch.series["gateway", "fds"]] == [5.0, 5.0]
    assert [p.value for p in watch.series["serve", "threads"]] == [7.0, 7.0]
    assert watch.pids["ngram"] == {2, 7}
    assert watch.pids["verifier"] == {3}


def test_an_ended_process_is_not_measured(proc: Proc) -> None:
    assert Watch(1, proc.folder).measure(99) is None
    (proc.folder / "5" / "status").write_text("Name:\tsh\nState:\tZ (zombie)\nThreads:\t1\n")
    assert Watch(1, proc.folder).measure(5) is None
