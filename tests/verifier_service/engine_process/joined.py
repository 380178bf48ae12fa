"""A core and its edge joined as across two processes, in one: channel and both sides are real."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from verifier_service.core import CountingCore
from verifier_service.engine_process import wire
from verifier_service.engine_process.host import Host
from verifier_service.engine_process.process import EngineProcess
from verifier_service.engine_process.remote_core import RemoteCore
from verifier_service.messages import Output
from verifier_service.proposer_state import ProposerState

WAIT_S = 30.0


@dataclass
class Answer:
    """A sink that knows when it is complete."""

    outputs: list[Output] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    began: threading.Event = field(default_factory=threading.Event)

    def __call__(self, output: Output) -> None:
        assert not self.done.is_set(), "nothing follows the last output"
        self.outputs.append(output)
        self.began.set()
        if wire.is_last(output):
            self.done.set()

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    def wait(self) -> Answer:
        assert self.done.wait(WAIT_S)
        return self


class FakeProcess:
    """The parent's view of a process that is a thread: how it ended is what the test says."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pid = 0
        self.how = "was killed by SIGKILL"
        self.killed = False

    def ended(self) -> str:
        return self.how

    def kill(self) -> None:
        self.killed = True
        self.connection.close()

    def close(self) -> None:
        self.connection.close()


class Far:
    """The other side: a core with its host, and a thread that reads orders as the child does."""

    def __init__(
        self, core: CountingCore, connection: Connection, states: Sequence[ProposerState] = ()
    ) -> None:
        self.connection = connection
        self.orders: list[object] = []
        self.states = list(states)
        self.host = Host(core, connection, lambda: tuple(self.states))
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        try:
            while not self.host.ended.is_set():
                order = wire.decode(self.connection.recv_bytes())
                self.orders.append(order)
                self.host.take(order)
        except (EOFError, OSError):
            self.host.ended.set()
        self.host.close()
        self.connection.close()


def join(
    core: CountingCore, *, max_waiting: int = 10, states: Sequence[ProposerState] = ()
) -> tuple[RemoteCore, Far, FakeProcess]:
    """The core as its edge sees it, the far side, and the process between them."""
    ours, theirs = Pipe()
    far = Far(core, theirs, states)
    process = FakeProcess(ours)
    ready = wire.decode(ours.recv_bytes())
    remote = RemoteCore(cast(EngineProcess, process), ready, max_waiting=max_waiting)
    return remote, far, process


@contextmanager
def joined(core: CountingCore, **options: Any) -> Iterator[RemoteCore]:
    """`join`, shut down at the end."""
    remote, far, _ = join(core, **options)
    try:
        yield remote
    finally:
        remote.shutdown()
        far.thread.join(WAIT_S)
        assert not far.thread.is_alive()
