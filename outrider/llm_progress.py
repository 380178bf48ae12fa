"""The progress bar of `generate` and `chat`: prompts answered, and tokens a second.

Knows what is shown; `rich` draws it on standard error. The event loop's thread adds tokens, the
caller's thread prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class Bar(Protocol):
    """What is told of a running call."""

    def tokens(self, count: int) -> None:
        """So many tokens came."""

    def prompt(self) -> None:
        """One more prompt is answered."""

    def close(self) -> None: ...


class NoBar:
    """For calls that show nothing."""

    def tokens(self, count: int) -> None:
        return

    def prompt(self) -> None:
        return

    def close(self) -> None:
        return


class RichBar:
    """A bar on standard error."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._tokens = 0
        self._begun = time.monotonic()
        self._progress = Progress(
            TextColumn("Processed prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=total, speed="")
        self._progress.start()

    def tokens(self, count: int) -> None:
        self._tokens += count
        speed = self._tokens / max(time.monotonic() - self._begun, 1e-9)
        self._progress.update(self._task, speed=f"{speed:.0f} tokens/s")

    def prompt(self) -> None:
        self._progress.advance(self._task)

    def close(self) -> None:
        self._progress.stop()


class CallerBar:
    """A bar that the caller makes, with tqdm's `update` and `close`."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def tokens(self, count: int) -> None:
        return

    def prompt(self) -> None:
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


def open_bar(use_tqdm: bool | Callable[..., Any], total: int) -> Bar:
    """The bar that `use_tqdm` asks for: ours, none, or what it makes (as tqdm would)."""
    if callable(use_tqdm):
        return CallerBar(use_tqdm(total=total, desc="Processed prompts"))
    return RichBar(total) if use_tqdm else NoBar()
