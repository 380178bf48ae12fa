"""`python -m benchmarks.step_host` as a command, and what counts as the host's time."""

from __future__ import annotations

import io
import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import step_host
from benchmarks.step_edge import EdgeReading, outputs, read_edge
from benchmarks.step_host import Reading, edge_table, table
from benchmarks.step_laps import SHOWN, Laps, Load, measure


class Clock:
    """Nanoseconds that pass as they are told to."""

    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


class Worker:
    """`outer` takes 5 and calls `inner`, which takes 3."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def outer(self) -> str:
        self._clock.now += 5
        return self.inner()

    def inner(self) -> str:
        self._clock.now += 3
        return "done"


def test_nested_parts_are_counted_once_and_the_rest_is_the_loops() -> None:
    clock = Clock()
    laps = Laps(clock, wanted=1)
    worker = Worker(clock)
    laps.time(worker, "outer", "plan")
    laps.time(worker, "inner", "decide")
    laps.forward_begins(0, counted=True)
    worker.inner()
    laps.forward_works()
    clock.now += 100
    laps.forward_ends()
    assert worker.outer() == "done"
    clock.now += 2
    assert not laps.done.is_set()
    laps.forward_begins(4, counted=True)
    assert laps.steps == [(0, 4, {"plan": 5, "decide": 3, "loop": 2, "meanwhile": 3})]
    assert laps.done.is_set()


def test_steps_that_prefill_are_left_out() -> None:
    clock = Clock()
    laps = Laps(clock, wanted=1)
    laps.forward_begins(0, counted=True)
    laps.forward_ends()
    laps.forward_begins(0, counted=False)
    assert laps.steps == []


@pytest.mark.parametrize("drafts", [0, 3])
def test_every_part_of_the_real_loop_is_seen(drafts: int) -> None:
    ticks = itertools.count()
    laps = Laps(lambda: next(ticks), wanted=40)
    measure(Load(3, drafts, 0.0, context=20), laps, awake=True)
    seen: defaultdict[str, int] = defaultdict(int)
    for _, _, spent in laps.steps:
        for part, ticked in spent.items():
            seen[part] += ticked
    missing = {name for name in SHOWN if not seen[name]}
    assert missing == (set() if drafts else {"learn rounds"})
    assert any(behind for _, behind, _ in laps.steps) == (drafts > 0)


def test_a_loop_that_fails_is_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, chunks: object, **how: object) -> None:
        raise ValueError("no such forward")

    monkeypatch.setattr("benchmarks.step_laps.SleepingEngine.run", fail)
    with pytest.raises(RuntimeError, match="no such forward"):
        measure(Load(1, 0, 0.0, context=20), Laps(Clock(), wanted=1))


def test_the_command_tells_all_loads(tmp_path: Path) -> None:
    stream, file = io.StringIO(), tmp_path / "host.json"
    told = ["--sequences", "2", "--temperatures", "0", "--steps", "30", "--runs", "1", "--awake"]
    options = [*told, "--context", "20", "--json", str(file)]
    assert step_host.main(options, Console(file=stream, width=200)) == 0
    shown = stream.getvalue()
    assert "| 2 | no | 0 | 20 |" in shown
    assert "| 2 | yes | 0 | 20 |" in shown
    report = json.loads(file.read_text())
    assert [one["drafts"] for one in report["microseconds"]] == [False, True]
    assert all(one["total"] > 0 for one in report["microseconds"])
    assert [one["drafted"] for one in report["edge_microseconds"]] == [0, 3]


def test_tables_have_a_line_for_each_reading() -> None:
    parts = dict.fromkeys(SHOWN, 1.2)
    shown = table([Reading(8, True, 1.0, 256, 90, parts, 9.6, 3.4)])
    assert shown.splitlines()[-1] == "| 8 | yes | 1 | 256 |" + " 1 |" * len(SHOWN) + " 10 | 3 |"
    assert edge_table([EdgeReading(3, 20.04, 9.0)]).endswith("| 4 | 20.0 | 9.0 |")


def test_an_edges_output_is_a_round_that_accepts_its_drafts() -> None:
    made = outputs(2)
    assert all(len(one.token_ids) == 3 for one in made)
    assert made[-1].finish_reason is not None
    # The numbers are of milliseconds.
    ticks = itertools.count(0, 1_000_000)
    reading = read_edge(2, lambda: next(ticks), runs=1)
    assert reading.streamed > 0
    assert reading.whole > 0
