"""How a service that `serve` started ends when `serve` is gone, however it went.

Knows that a supervised process's standard input is a pipe whose other end only its parent holds;
does not know what the process does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

GRACE_S = 10.0


@contextlib.contextmanager
def ending_with_parent(runtime_dir: Path, socket: Path | None) -> Iterator[None]:
    """Run the body as a child of `serve`, which gave it `runtime_dir` and its `socket` in there.

    When the parent dies the process gets SIGTERM as if from it; if the body has not returned
    GRACE_S seconds later it is ended at once. Whoever of the orphans leaves last removes
    `runtime_dir`, and each takes its own process group along.
    """
    orphaned = threading.Event()
    ended = threading.Event()

    def leave() -> None:
        if socket is not None:
            socket.unlink(missing_ok=True)
        # Not empty: a sibling is still there and will remove it.
        with contextlib.suppress(OSError):
            runtime_dir.rmdir()
        os.killpg(os.getpgid(0), signal.SIGKILL)

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        orphaned.set()
        os.kill(os.getpid(), signal.SIGTERM)
        if not ended.wait(GRACE_S):
            leave()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if orphaned.is_set():
            leave()


def end_now() -> NoReturn:
    """End this process with exit code 0 and without cleanup.

    For a process with a native thread that cannot be stopped: the C++ runtime aborts where it
    cleans up beside one.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within the body SIGTERM raises SystemExit(143), so that cleanup runs as for Ctrl-C."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
