"""How far an engine's start is: what is compiled, which step is captured, how many are left.

Knows stages and buckets; does not know how either is done. On a terminal a bar shows it, gone when
it is done; elsewhere, and for the record, the log says it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verifier_service.engines.buckets import Bucket, Shapes

_log = logging.getLogger(__name__)

# Without a terminal, captures from one line of the log to the next.
_EVERY = 5


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Around something that takes its time and cannot say how much of it is done."""
    began = time.monotonic()
    _log.info("%s", name)
    with _bar(None) as show:
        show(name, 0)
        yield
    _log.info("%s: done seconds=%.1f", name, time.monotonic() - began)


def captured_one_by_one(buckets: Shapes, kind: str) -> Iterator[Bucket]:
    """The buckets, each captured by the time that the next is asked for; `kind` names the steps."""
    began = time.monotonic()
    total = len(buckets)
    with _bar(total) as show:
        for number, bucket in enumerate(buckets, start=1):
            shape = f"{bucket.sequences} sequences, {bucket.tokens} tokens"
            # What chooses tokens is compiled with the first capture that needs it.
            compiling = ", and compiling" if number == 1 else ""
            show(f"capturing {kind} steps ({shape}){compiling}", number - 1)
            if number == 1:
                _log.info("capturing %d %s steps%s", total, kind, compiling)
            yield bucket
            if number in (1, total) or number % _EVERY == 0:
                _log.info(
                    "captured %d of %d %s steps (%s) seconds=%.1f",
                    number,
                    total,
                    kind,
                    shape,
                    time.monotonic() - began,
                )


# Shows what is being done, and how many are done.
_Show = Callable[[str, int], None]


@contextmanager
def _bar(total: int | None) -> Iterator[_Show]:
    """A bar of `total` steps, None for an unknown number; nothing where there is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    count = () if total is None else (BarColumn(), MofNCompleteColumn())
    with Progress(
        SpinnerColumn(),
        *count,
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=total)
        # At once: what follows may keep the thread that draws from running.
        yield lambda text, done: bar.update(task, description=text, completed=done, refresh=True)
