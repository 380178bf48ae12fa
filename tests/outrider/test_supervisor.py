"""Children start, come back when they die, stop in order and leave nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.errors import InputError, OperationError
from outrider.supervisor import Service, Supervisor

WAIT_S = 30.0

# A child that touches `ready`, and ends on SIGTERM.
GOOD = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(sys.argv[1]).touch()
print("hello from", sys.argv[1], flush=True)
time.sleep(60)
"""
# Is ready once it is told to be.
TOLD = GOOD.replace(
    "pathlib.Path(sys.argv[1]).touch()",
    """while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)
pathlib.Path(sys.argv[1]).touch()""",
)
# Says that it heard SIGTERM and goes on.
STUBBORN = GOOD.replace("sys.exit(0)", "pathlib.Path(sys.argv[2]).touch()").replace(
    "time.sleep(60)", "[time.sleep(1) for _ in range(60)]"
)
WITH_GRANDCHILD = """
import pathlib, subprocess, sys, time
grandchild = subprocess.Popen(["sleep", "60"])
pathlib.Path(sys.argv[2]).write_text(str(grandchild.pid))
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def service(name: str, folder: Path, code: str = GOOD, deadline: float = WAIT_S) -> Service:
    marker = folder / f"{name}.ready"
    return Service(
        name=name,
        command=(sys.executable, "-c", code, str(marker), str(folder / f"{name}.extra")),
        is_ready=marker.exists,
        stop_deadline_s=deadline,
        socket=folder / f"{name}.sock",
    )


def ignore(states: Sequence[tuple[str, float, bool]]) -> None:
    return


class Lines:
    """What a supervisor said."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.seen.append((name, line))

    def of(self, name: str) -> list[str]:
        return [line for who, line in self.seen if who == name]


class Running:
    """A supervisor whose `run` goes on in a thread."""

    def __init__(self, services: Sequence[Service], lines: Lines) -> None:
        self.supervisor = Supervisor(services, lines)
        assert self.supervisor.start(ignore)
        self.thread = threading.Thread(target=self.supervisor.run)
        self.thread.start()

    def pid(self, index: int = 0) -> int:
        process = self.supervisor._children[index].process
        return process.pid if process is not None else 0

    def stop(self) -> None:
        self.supervisor.request_stop()
        self.thread.join(WAIT_S)
        self.supervisor.stop()


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def running(tmp_path: Path, lines: Lines) -> Iterator[Running]:
    running = Running([service("one", tmp_path)], lines)
    yield running
    running.stop()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_starts_reports_progress_and_forwards_output(tmp_path: Path, lines: Lines) -> None:
    supervisor = Supervisor([service("a", tmp_path), service("b", tmp_path)], lines)
    seen: list[tuple[str, bool]] = []

    def progress(states: Sequence[tuple[str, float, bool]]) -> None:
        seen.extend((name, ready) for name, _, ready in states)

    assert supervisor.start(progress)
    assert seen[-2:] == [("a", True), ("b", True)]
    supervisor.stop()
    assert any("hello from" in line for line in lines.of("a"))


def test_a_service_is_started_when_what_it_waits_for_is_ready(tmp_path: Path, lines: Lines) -> None:
    first, second = service("first", tmp_path, TOLD), service("second", tmp_path)
    supervisor = Supervisor(
        [first, replace(second, after=("first",)), service("c", tmp_path)], lines
    )
    started: list[tuple[bool, ...]] = []

    def progress(states: Sequence[tuple[str, float, bool]]) -> None:
        assert all(0 <= seconds < WAIT_S for _, seconds, _ in states)
        running = [child.process is not None for child in supervisor._children]
        started.append((states[0][2], *running))
        (tmp_path / "first.extra").touch()

    assert supervisor.start(progress)
    supervisor.stop()
    # (first is ready, first runs, second runs, third runs)
    assert started[0] == (False, True, False, True)
    assert all(not second or ready for ready, _, second, _ in started)
    assert started[-1] == (True, True, True, True)


def test_what_others_wait_for_ends_the_start(tmp_path: Path, lines: Lines) -> None:
    failing = service("first", tmp_path, "import sys; sys.exit(2)")
    supervisor = Supervisor(
        [failing, replace(service("second", tmp_path), after=("first",))], lines
    )
    with pytest.raises(InputError, match="first ended with exit code 2 before it was ready"):
        supervisor.start(ignore)
    supervisor.stop()
    assert not (tmp_path / "second.ready").exists()


def test_dead_child_comes_back_with_one_line(running: Running, lines: Lines) -> None:
    first = running.pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: running.pid() not in (0, first))
    assert alive(running.pid())
    said = [line for line in lines.of("one") if "hello" not in line]
    assert len(said) == 1
    assert said[0].startswith("was killed by SIGKILL; it is started again in 0.")


def test_restart_removes_the_stale_socket(running: Running, tmp_path: Path, lines: Lines) -> None:
    stale = tmp_path / "one.sock"
    stale.touch()
    first = running.pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: running.pid() not in (0, first))
    assert not stale.exists()


def test_delays_grow_for_a_child_that_keeps_dying(tmp_path: Path, lines: Lines) -> None:
    marker = tmp_path / "crash.ready"
    code = "import sys, pathlib, time; m = pathlib.Path(sys.argv[1])\n"
    code += "if m.exists(): sys.exit(7)\nm.touch(); time.sleep(0.5); sys.exit(7)"
    crashing = Service("crash", (sys.executable, "-c", code, str(marker)), marker.exists)
    running = Running([crashing], lines)
    until(lambda: len(lines.of("crash")) >= 3)
    running.stop()
    delays = [float(line.split()[-2]) for line in lines.of("crash")[:3]]
    assert all("ended with exit code 7" in line for line in lines.of("crash"))
    assert delays[0] < delays[1] < delays[2]


def test_stops_in_reverse_order(tmp_path: Path, lines: Lines) -> None:
    order = tmp_path / "order"
    code = GOOD.replace(
        "sys.exit(0)", f"(open({str(order)!r}, 'a').write(sys.argv[1] + '\\n'), sys.exit(0))"
    )
    supervisor = Supervisor([service(name, tmp_path, code) for name in "abc"], lines)
    assert supervisor.start(ignore)
    supervisor.stop()
    assert [Path(line).stem for line in order.read_text().split()] == ["c", "b", "a"]


def test_a_child_that_does_not_stop_is_killed(tmp_path: Path, lines: Lines) -> None:
    supervisor = Supervisor([service("stubborn", tmp_path, STUBBORN, deadline=0.1)], lines)
    assert supervisor.start(ignore)
    process = supervisor._children[0].process
    assert process is not None
    supervisor.stop()
    assert process.returncode == -signal.SIGKILL
    assert "did not stop in time; killed" in lines.of("stubborn")


def test_second_stop_request_kills_at_once(tmp_path: Path, lines: Lines) -> None:
    supervisor = Supervisor([service("stubborn", tmp_path, STUBBORN)], lines)
    assert supervisor.start(ignore)
    supervisor.request_stop()
    stopper = threading.Thread(target=supervisor.stop)
    stopper.start()
    until((tmp_path / "stubborn.extra").exists)
    supervisor.request_stop()
    stopper.join(WAIT_S)
    assert not stopper.is_alive()


def test_grandchildren_go_with_their_parent(tmp_path: Path, lines: Lines) -> None:
    supervisor = Supervisor([service("family", tmp_path, WITH_GRANDCHILD)], lines)
    assert supervisor.start(ignore)
    grandchild = int((tmp_path / "family.extra").read_text())
    supervisor.stop()
    until(lambda: not alive(grandchild))


@pytest.mark.parametrize(("code", "error"), [(2, InputError), (1, OperationError)])
def test_child_that_ends_before_it_is_ready_fails_the_start(
    tmp_path: Path, lines: Lines, code: int, error: type[Exception]
) -> None:
    quick = Service("bad", (sys.executable, "-c", f"raise SystemExit({code})"), lambda: False)
    supervisor = Supervisor([service("good", tmp_path), quick], lines)
    with pytest.raises(error, match=f"bad ended with exit code {code} before it was ready"):
        supervisor.start(ignore)
    supervisor.stop()
    assert all(child.process is None for child in supervisor._children)


def test_stop_during_the_start(tmp_path: Path, lines: Lines) -> None:
    never = Service("slow", (sys.executable, "-c", "import time; time.sleep(60)"), lambda: False)
    supervisor = Supervisor([never], lines)
    assert not supervisor.start(lambda states: supervisor.request_stop())
    supervisor.stop()


def test_children_do_not_hear_the_terminals_interrupt(running: Running) -> None:
    assert os.getpgid(running.pid()) != os.getpgid(0)
