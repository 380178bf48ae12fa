"""A server that a benchmark starts for itself, and stops.

Knows processes and readiness; does not know what is measured. The server's own output is shown
only where it fails to start.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from outrider.errors import CommandError, InputError, OperationError
from outrider.probes import http_is_healthy
from outrider.supervisor import Service, Supervisor

_LINES: Final = 40
# `outrider serve` stops three services in turn.
_STOP_S: Final = 45.0
PORT: Final = "{port}"
K: Final = "{num_speculative_tokens}"


def serve_command(model: str, port: int, options: Sequence[str]) -> tuple[str, ...]:
    """`outrider serve` of `model` on `port`, with more options as they were written."""
    return (sys.executable, "-m", "outrider.cli", "serve", model, f"--port={port}", *options)


def fill_command(template: str, port: int, k: int | None) -> tuple[str, ...]:
    """The words of a `--serve-cmd`, `{port}` and `{num_speculative_tokens}` replaced.

    Raises InputError where it cannot be split, has no place for the port, or one for K without K.
    """
    if PORT not in template:
        raise InputError(f"--serve-cmd: {template!r} has no {PORT}: say where its port belongs")
    if k is None and K in template:
        raise InputError(f"--serve-cmd: it has {K}, and no --num-speculative-tokens is given")
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise InputError(f"--serve-cmd: {template!r}: {error}") from error
    return tuple(word.replace(PORT, str(port)).replace(K, str(k)) for word in words)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def running_server(
    command: Sequence[str],
    port: int,
    timeout_s: float,
    show: Callable[[str], None],
    on_wait: Callable[[float], None] = lambda seconds: None,
) -> Iterator[str]:
    """The URL of the started server, which is stopped afterwards.

    `show` gets its last lines of output where it does not become ready; `on_wait` the seconds
    since the start while that lasts. Raises OperationError, or what the server's end stands for.
    """
    url = f"http://127.0.0.1:{port}"
    lines: deque[str] = deque(maxlen=_LINES)
    service = Service(
        "server", tuple(command), partial(http_is_healthy, f"{url}/health"), stop_deadline_s=_STOP_S
    )
    supervisor = Supervisor([service], lambda name, line: lines.append(line))

    def watch(states: Sequence[tuple[str, float, bool]]) -> None:
        seconds = states[0][1]
        on_wait(seconds)
        if seconds > timeout_s:
            raise OperationError(
                f"the server was not ready after {timeout_s:g} s; give it more with "
                "--server-ready-timeout"
            )

    try:
        try:
            supervisor.start(watch)
        except FileNotFoundError as error:
            raise InputError(f"--serve-cmd: there is no command {command[0]!r}") from error
        except CommandError:
            for line in lines:
                show(line)
            raise
        yield url
    finally:
        supervisor.stop()
