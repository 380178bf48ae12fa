"""A progress bar on standard error.

Knows how many requests there are; does not know what they measure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from outrider.bench.arms import Arm
from outrider.bench.records import Record


class Watcher(Protocol):
    """Is told of each load and of each request that ended."""

    def start(self, total: int, what: str) -> None: ...

    def done(self, arm: Arm, record: Record) -> None: ...


class Silent:
    """Shows nothing."""

    def start(self, total: int, what: str) -> None:
        """Nothing is shown."""

    def done(self, arm: Arm, record: Record) -> None:
        """Nothing is shown."""


@contextlib.contextmanager
def progress_bar(shown: bool) -> Iterator[Watcher]:
    """A bar for each load while the body runs."""
    if not shown:
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )

    class Bar:
        def __init__(self, progress: Progress) -> None:
            self._progress = progress
            self._task: TaskID | None = None
            self._failed = 0

        def start(self, total: int, what: str) -> None:
            # Before that there is nothing to show, and an error stands on a line of its own.
            self._progress.start()
            self._failed = 0
            self._task = self._progress.add_task(what, total=total, state="")

        def done(self, arm: Arm, record: Record) -> None:
            if self._task is None:
                return
            self._failed += not record.ok
            failed = f", {self._failed} failed" if self._failed else ""
            self._progress.update(self._task, advance=1, state=f"{arm.name}{failed}")

    progress = Progress(*columns, console=Console(stderr=True))
    try:
        yield Bar(progress)
    finally:
        if progress.tasks:
            progress.stop()
