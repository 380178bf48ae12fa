"""The engine's process as its parent holds it: started, spoken to, ended.

Knows processes and bytes; does not know what is said. It is started as a command and not by
multiprocessing: the child then runs its own module only, where a spawned one first imports the
parent's main module again, and no resource tracker runs beside it. It stays in the parent's process
group, so that whoever ends the group ends it, and it ends by itself when the channel does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from outrider.errors import OperationError

_REAP_S = 5.0


class EngineProcess:
    """A child that has not been told yet what to serve. Thread-safe, but for one reader."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self._process = process
        self.connection = connection
        self._lock = threading.Lock()

    @classmethod
    def start(cls) -> EngineProcess:
        """Start the child; it begins to import what an engine needs. Raises OperationError."""
        ours, theirs = Pipe()
        module = "verifier_service.engine_process.child"
        with theirs:
            command = [sys.executable, "-m", module, str(theirs.fileno())]
            try:
                process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(),),
                    # The parent's own may be the pipe that tells it when to end.
                    stdin=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                raise OperationError(f"the engine's process does not start: {error}") from error
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> str:
        """How it ended, in words, once it has closed its side; it is killed if it does not end."""
        try:
            code = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """End it at once. Idempotent; whoever reads its messages sees their end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let go of the channel, which ends the process if it still runs. Idempotent."""
        with self._lock:
            self.connection.close()
