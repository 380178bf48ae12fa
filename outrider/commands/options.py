"""Options that several subcommands share, and what they do first.

Knows the command line; does not know the services.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from outrider import logs
from outrider.errors import InputError
from outrider.parent import ending_with_parent, exit_on_sigterm

CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="Where pulled models are kept; else $OUTRIDER_CACHE_DIR, else the user's cache.",
        show_default=False,
    ),
]
LogLevel = Annotated[
    str, typer.Option("--log-level", help=f"How much is logged: {', '.join(logs.LEVELS)}.")
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        min=0,
        help="Seconds that running requests may go on after SIGTERM; new ones are refused.",
    ),
]
# Set by `serve` for its children only.
RuntimeDir = Annotated[Path | None, typer.Option("--runtime-dir", hidden=True)]


def parse_tokens(text: str) -> int:
    """A number of draft tokens; its range is told with the other keys'. Raises InputError."""
    try:
        return int(text)
    except ValueError as error:
        from outrider.config import shorten

        raise InputError(
            f"--spec-tokens: {shorten(repr(text))} is not a whole number; write one from 1 to 128"
        ) from error


def configure_logs(level: str) -> None:
    """Logs of `level` and above to standard error. Raises InputError for an unknown level."""
    try:
        logs.configure(level)
    except ValueError as error:
        raise InputError(
            f"--log-level: {level!r} is not one of {', '.join(logs.LEVELS)}"
        ) from error


@contextlib.contextmanager
def service_process(log_level: str, runtime_dir: Path | None, listen: str = "") -> Iterator[None]:
    """What every service does around its run: logs, SIGTERM, and ending with its parent.

    `runtime_dir` is set where `serve` is the parent.
    """
    configure_logs(log_level)
    with exit_on_sigterm():
        if runtime_dir is None:
            yield
            return
        socket = Path(listen.removeprefix("unix:")) if listen.startswith("unix:") else None
        with ending_with_parent(runtime_dir, socket):
            yield
