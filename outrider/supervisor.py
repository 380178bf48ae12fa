"""Child processes kept alive until the end, then stopped in order.

Knows processes, readiness and deadlines; does not know what the services do. One thread (the
caller's) starts, restarts and stops; one more for each child forwards its output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from outrider.backoff import Backoff
from outrider.config import child_environment
from outrider.errors import InputError, OperationError

# Called with the service's name and one line of its output, or of what happened to it.
Say = Callable[[str, str], None]

_TICK_S = 0.05
_PROBE_EVERY_S = 0.2
_FIRST_RESTART_S = 0.2
_LAST_RESTART_S = 10.0
_STEADY_S = 10.0


@dataclass(frozen=True, slots=True)
class Service:
    """One child: its command, how to see that it is ready, how long it may take to stop.

    `after` names services, earlier ones, that must be ready before this one is started at first.
    """

    name: str
    command: tuple[str, ...]
    is_ready: Callable[[], bool]
    stop_deadline_s: float = 10.0
    socket: Path | None = None
    # Variables beside those of this process.
    environment: tuple[tuple[str, str], ...] = ()
    after: tuple[str, ...] = ()


@dataclass(slots=True)
class _Child:
    service: Service
    process: subprocess.Popen[bytes] | None = None
    forwarder: threading.Thread | None = None
    started_at: float = 0.0
    ready: bool = False
    probed_at: float = 0.0
    restart_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_RESTART_S, _LAST_RESTART_S))


class Supervisor:
    """Runs `services` (started in order, stopped in reverse).

    `request_stop` is safe to call in a signal handler; a second call kills what still runs.
    """

    def __init__(self, services: Sequence[Service], say: Say) -> None:
        self._children = [_Child(service) for service in services]
        self._say = say
        self._stop_requests = 0

    def request_stop(self) -> None:
        self._stop_requests += 1

    @property
    def stop_requested(self) -> bool:
        return self._stop_requests > 0

    def start(self, on_progress: Callable[[Sequence[tuple[str, float, bool]]], None]) -> bool:
        """Start all and wait until each is ready; whether they are (False: a stop was asked for).

        `on_progress` is called with (name, seconds since start, ready) of each, many times a
        second. Raises InputError or OperationError when a child ends before it is ready.
        """
        begun = time.monotonic()
        while not self.stop_requested:
            self._spawn_due()
            for child in self._children:
                self._fail_if_ended(child)
            # In order: what starts later is ready only when what it needs is.
            unready = next((child for child in self._children if not child.ready), None)
            if unready is not None:
                self._probe(unready)
            now = time.monotonic()
            on_progress(
                [(c.service.name, now - (c.started_at or begun), c.ready) for c in self._children]
            )
            if all(child.ready for child in self._children):
                return True
            time.sleep(_TICK_S)
        return False

    def run(self) -> None:
        """Restart what dies, with backoff, until a stop is asked for."""
        while not self.stop_requested:
            for child in self._children:
                self._tend(child)
            time.sleep(_TICK_S)

    def stop(self) -> None:
        """Stop all in reverse order: SIGTERM, then SIGKILL after each one's deadline."""
        heard = self._stop_requests
        for child in reversed(self._children):
            process = child.process
            if process is None:
                continue
            if process.poll() is None:
                process.terminate()
            deadline = time.monotonic() + child.service.stop_deadline_s
            while process.poll() is None and time.monotonic() < deadline:
                if self._stop_requests > heard:
                    break
                time.sleep(_TICK_S)
            if process.poll() is None:
                self._say(child.service.name, "did not stop in time; killed")
            self._reap(child)

    def _spawn_due(self) -> None:
        """Start what was not started yet and waits for nobody any more."""
        ready = {child.service.name for child in self._children if child.ready}
        for child in self._children:
            if child.process is None and ready.issuperset(child.service.after):
                self._spawn(child)

    def _spawn(self, child: _Child) -> None:
        service = child.service
        if service.socket is not None:
            service.socket.unlink(missing_ok=True)
        child.process = subprocess.Popen(
            service.command,
            env=child_environment(**dict(service.environment)),
            # The child ends when this pipe closes, that is, when this process is gone.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A Ctrl-C at the terminal is for this process, which stops the children in order.
            start_new_session=True,
        )
        assert child.process.stdout is not None
        child.forwarder = threading.Thread(
            target=self._forward, args=(service.name, child.process.stdout), daemon=True
        )
        child.forwarder.start()
        child.started_at = time.monotonic()
        child.ready = False

    def _forward(self, name: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._say(name, line.decode(errors="replace").rstrip("\n"))

    def _probe(self, child: _Child) -> None:
        now = time.monotonic()
        if child.ready or child.process is None or now - child.probed_at < _PROBE_EVERY_S:
            return
        child.ready = child.service.is_ready()
        child.probed_at = time.monotonic()

    def _fail_if_ended(self, child: _Child) -> None:
        code = None if child.process is None else child.process.poll()
        if code is None:
            return
        self._reap(child)
        kind = InputError if code == InputError.exit_code else OperationError
        raise kind(f"{child.service.name} {_describe_exit(code)} before it was ready; see above")

    def _tend(self, child: _Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if now >= child.restart_at:
                self._spawn(child)
            return
        code = child.process.poll()
        if code is None:
            self._probe(child)
            if child.ready and now - child.started_at > _STEADY_S:
                child.backoff.reset()
            return
        self._reap(child)
        delay = child.backoff.next_delay()
        child.restart_at = now + delay
        self._say(
            child.service.name, f"{_describe_exit(code)}; it is started again in {delay:.1f} s"
        )

    def _reap(self, child: _Child) -> None:
        """Kill what is left of the child's process group and let go of its pipes."""
        process = child.process
        assert process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if child.forwarder is not None:
            child.forwarder.join(timeout=1.0)
        child.process = None


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
