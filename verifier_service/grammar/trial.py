"""Tries structures in a process of their own, so that none can hang or end the verifier.

Knows time, memory and processes; what is tried there is trial_process.py's. A schema of a few
lines may take minutes and gigabytes to compile, and a call into the library cannot be interrupted:
only a process can.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from verifier_service.grammar.structure import HopelessStructureError, Structure
from verifier_service.grammar.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

# The process imports torch: seconds, many of them on a busy machine.
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """What compiling one structure may take, and how large its grammar may be."""

    seconds: float = 10.0
    memory_bytes: int = 2 << 30
    compiled_bytes: int = 64 << 20


class Trial(Protocol):
    """Says of a structure whether it can be compiled within the limits."""

    def check(self, structure: Structure) -> None:
        """Blocks. Raises HopelessStructureError where it cannot."""

    def close(self) -> None:
        """End what runs; a blocked `check` fails. Idempotent, from any thread."""


class TrialProcess:
    """A `Trial` in a process that is started by the first structure and again after it was killed.

    One thread at a time may check.
    """

    def __init__(
        self, vocabulary: Callable[[], Vocabulary], limits: TrialLimits | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._limits = limits or TrialLimits()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one does."""
        process = self._process
        return process.pid if process is not None else None

    def check(self, structure: Structure) -> None:
        if self._process is not None and self._process.poll() is not None:
            # It ended while it had nothing to do: no structure's fault.
            self._end()
        connection = self._connection or self._start()
        message = {
            "kind": structure.kind.value,
            "text": structure.text,
            "compact": structure.compact,
            "closed": structure.closed,
        }
        try:
            reply = _ask(connection, message, self._limits.seconds)
        except (OSError, ValueError) as error:
            self._end()
            if self._closed:
                raise RuntimeError("the verifier is shutting down") from error
            raise HopelessStructureError(
                f"its grammar does not get ready within {self._limits.seconds:g} seconds and "
                f"{self._limits.memory_bytes >> 20} MiB of memory"
            ) from error
        if reply["reason"]:
            raise HopelessStructureError(reply["reason"])

    def close(self) -> None:
        self._closed = True
        self._end()

    def _start(self) -> socket.socket:
        """Start the process. Raises RuntimeError where that fails: no structure's fault."""
        vocabulary = self._vocabulary()
        with self._lock:
            if self._closed:
                raise RuntimeError("the verifier is shutting down")
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", "verifier_service.grammar.trial_process"]
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            self._connection = ours
        start = {
            "pieces": [piece.decode("latin-1") for piece in vocabulary.pieces],
            "stop_ids": vocabulary.stop_ids,
            "seconds": self._limits.seconds,
            "memory_bytes": self._limits.memory_bytes,
            "compiled_bytes": self._limits.compiled_bytes,
        }
        try:
            _ask(ours, start, _START_S)
        except (OSError, ValueError) as error:
            self._end()
            raise RuntimeError("the process that tries grammars does not start") from error
        _log.info("grammar trial process started pid=%d", self._process.pid)
        return ours

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            connection, self._connection = self._connection, None
        if process is not None:
            process.kill()
            process.wait()
        if connection is not None:
            # A read that is blocked on another thread ends at once; closing alone would not do it.
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                _log.debug("the trial process had closed its end already")
            connection.close()


def _ask(connection: socket.socket, message: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One line there, one line back. Raises OSError (a timeout too) and ValueError."""
    connection.settimeout(seconds)
    connection.sendall(json.dumps(message).encode() + b"\n")
    line = bytearray()
    while not line.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("the trial process ended")
        line += part
    reply: dict[str, Any] = json.loads(line)
    return reply
