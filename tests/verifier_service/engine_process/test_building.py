"""How a load that fails crosses the processes, and where an engine runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any, cast

import pytest

from outrider.errors import InputError, OperationError
from tests.verifier_service.engine_process.joined import WAIT_S, Answer, FakeProcess
from tests.verifier_service.engine_process.toy_core import BROKEN, BUILD, REFUSED
from tests.verifier_service.serving import settings_for
from verifier_service.attaching import Target
from verifier_service.engine_process import choice, wire
from verifier_service.engine_process.building import build
from verifier_service.engine_process.choice import cuda_devices, runs_apart
from verifier_service.engine_process.process import EngineProcess
from verifier_service.engine_process.remote_core import RemoteCore, start_core
from verifier_service.messages import Request, Sampling

TARGET = Target("instance", "fingerprint", 302, (1,), 256)


@pytest.fixture(autouse=True)
def logging_as_the_tests_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.logs.configure", lambda level: None)


@pytest.fixture
def process() -> Iterator[FakeProcess]:
    """A process that builds what it is told to on a thread, and ends where that fails."""
    ours, theirs = Pipe()

    def child() -> None:
        host = build(wire.decode(theirs.recv_bytes()), theirs)
        if host is not None:
            while not host.ended.is_set():
                host.take(wire.decode(theirs.recv_bytes()))
            host.close()
        theirs.close()

    thread = threading.Thread(target=child, daemon=True)
    thread.start()
    yield FakeProcess(ours)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def load(process: FakeProcess, build: str = BUILD, **changes: Any) -> RemoteCore:
    return start_core(
        cast(EngineProcess, process), settings_for("unix:unused", **changes), TARGET, build
    )


def test_what_is_loaded_serves(process: FakeProcess) -> None:
    core = load(process)
    answer = Answer()
    core.submit(Request("a", [1, 2], Sampling(max_tokens=4)), answer)
    assert len(answer.wait().tokens) == 4
    core.shutdown()


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"served_model_name": REFUSED}, InputError, "^model: the weights are missing$"),
        (
            {"served_model_name": BROKEN},
            OperationError,
            "^the engine does not start: MemoryError: no room$",
        ),
        (
            {"proposers": ("unix:/nonexistent/p.sock",), "draft_deadline_ms": 0.0},
            InputError,
            "^--draft-deadline-ms: 0 is not allowed",
        ),
    ],
)
def test_what_cannot_be_loaded_is_the_same_error_here(
    process: FakeProcess, changes: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        load(process, **changes)
    assert process.connection.closed


def test_a_builder_that_is_not_there_is_an_error_of_the_operation(process: FakeProcess) -> None:
    with pytest.raises(OperationError, match="does not start: ModuleNotFoundError"):
        load(process, build="nothing.of.this:name")


def test_proposers_are_attached_there_and_seen_here(process: FakeProcess) -> None:
    core = load(process, proposers=("unix:/nonexistent/p.sock",))
    assert [state.address for state in core.states()] == ["unix:/nonexistent/p.sock"]
    core.shutdown()


def test_a_process_that_ends_while_it_loads_says_how() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(OperationError, match=r"^the engine.s process was killed by SIGKILL while"):
        load(FakeProcess(ours))


@pytest.mark.parametrize(
    ("asked", "device", "devices", "apart"),
    [
        (True, "cpu", 0, True),
        (False, "cuda", 8, False),
        (None, "cpu", 8, False),
        (None, "cuda", 0, True),
        (None, "cuda:1", 0, True),
        (None, "auto", 1, True),
        (None, "auto", 0, False),
    ],
)
def test_the_engine_runs_apart_where_asked_or_on_cuda(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, device: str, devices: int, apart: bool
) -> None:
    monkeypatch.setattr(choice, "cuda_devices", lambda: devices)
    assert runs_apart(settings_for("unix:v", engine_process=asked, device=device)) is apart


def test_a_process_that_does_not_start_is_an_error_of_the_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(OperationError, match=r"^the engine's process does not start: "):
        EngineProcess.start()


class Driver:
    """libcuda, as far as it is asked."""

    def __init__(self, status: int, count: int) -> None:
        self._status, self._count = status, count

    def cuInit(self, flags: int) -> int:
        return self._status

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._count
        return 0


@pytest.mark.parametrize(("status", "count", "seen"), [(0, 2, 2), (0, 0, 0), (100, 2, 0)])
def test_the_driver_says_how_many_devices_there_are(
    monkeypatch: pytest.MonkeyPatch, status: int, count: int, seen: int
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: Driver(status, count))
    assert cuda_devices() == seen


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert cuda_devices() == 0
