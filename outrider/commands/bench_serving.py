"""Servers that a bench command starts for itself, as its user sees them start.

Knows what is shown meanwhile; processes are outrider.bench.child's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from outrider.commands.bench_running import tell
from outrider.errors import InputError
from outrider.parent import exit_on_sigterm


@contextlib.contextmanager
def started(template: str, k: int | None, timeout_s: float) -> Iterator[str]:
    """The URL of the server that `--serve-cmd` starts, for K where one is given."""
    from outrider.bench.child import fill_command, free_port

    port = free_port()
    with _running(fill_command(template, port, k), port, timeout_s) as url:
        yield url


@contextlib.contextmanager
def serving(model: str, options: Sequence[str], timeout_s: float) -> Iterator[str]:
    """The URL of an `outrider serve MODEL`, with more options as they were written."""
    from outrider.bench.child import free_port, serve_command

    port = free_port()
    with _running(serve_command(model, port, options), port, timeout_s) as url:
        yield url


@contextlib.contextmanager
def served(
    model: str | None,
    base_url: str | None,
    speculative_config: str | None,
    options: Sequence[str],
    timeout_s: float,
) -> Iterator[str]:
    """The URL of the server to measure; started for it unless `base_url` names one.

    Raises InputError where neither is named, or where `options` are for a server that runs already.
    """
    if base_url is not None:
        if options or speculative_config is not None:
            given = options[0] if options else "--speculative-config"
            raise InputError(
                f"{given}: the server at --base-url runs already; its options are its own"
            )
        yield base_url
        return
    if model is None:
        raise InputError("--model: which model? Name one to serve, or give a server's --base-url")
    own = [] if speculative_config is None else [f"--speculative-config={speculative_config}"]
    with serving(model, [*own, *options], timeout_s) as url:
        yield url


@contextlib.contextmanager
def _running(command: Sequence[str], port: int, timeout_s: float) -> Iterator[str]:
    from rich.console import Console

    from outrider.bench.child import running_server

    status = Console(stderr=True).status("starting the server")
    with exit_on_sigterm(), contextlib.ExitStack() as stack:
        stack.enter_context(status)
        url = stack.enter_context(
            running_server(
                command,
                port,
                timeout_s,
                tell,
                lambda seconds: status.update(f"starting the server ({seconds:.0f} s)"),
            )
        )
        status.stop()
        yield url
