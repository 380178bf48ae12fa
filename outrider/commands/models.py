"""`outrider models`: the models that Outrider can fetch by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.commands.options import CacheDir
from outrider.errors import OperationError
from outrider.parent import exit_on_sigterm

if TYPE_CHECKING:
    from outrider.checkpoints import ModelStore

app = typer.Typer(no_args_is_help=True, help="Fetch, list and remove models that go by a name.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="For instance smollm2-135m.")]


def open_store(cache_dir: Path | None) -> ModelStore:
    """The model store of `cache_dir`, or of the configured cache."""
    from outrider.checkpoints import ModelStore
    from outrider.config import cache_directory

    return ModelStore(cache_directory(cache_dir))


def pull_with_progress(store: ModelStore, name: str) -> Path:
    """Pull `name` with a progress bar on standard error; its folder."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            progress.start()
            tasks[stage] = progress.add_task(stage, total=total)
        progress.update(tasks[stage], completed=done, total=total)

    def waiting() -> None:
        console.print(f"another pull of {name} is running; waiting for it")

    with exit_on_sigterm():
        try:
            return store.pull(name, report, waiting)
        finally:
            if tasks:
                progress.stop()


@app.command()
def pull(name: Name, cache_dir: CacheDir = None) -> None:
    """Fetch a model unless it is here already, and print its folder."""
    print_line(str(pull_with_progress(open_store(cache_dir), name)))


@app.command("list")
def list_models(cache_dir: CacheDir = None) -> None:
    """List the known models and where those that were pulled are."""
    store = open_store(cache_dir)
    for name, model in store.known.items():
        print_line(f"{name}\t{store.find(name) or 'not pulled'}\t{model.title}")


@app.command()
def path(name: Name, cache_dir: CacheDir = None) -> None:
    """Print the folder of a pulled model."""
    folder = open_store(cache_dir).find(name)
    if folder is None:
        raise OperationError(f"{name} is not here; run: outrider models pull {name}")
    print_line(str(folder))


@app.command()
def remove(name: Name, cache_dir: CacheDir = None) -> None:
    """Delete a pulled model from the cache."""
    if not open_store(cache_dir).remove(name):
        raise OperationError(f"{name} is not here; there is nothing to remove")


def print_line(text: str) -> None:
    """One line of a command's answer, to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
