"""`outrider keys`: makes API keys for `--api-key-file`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.commands.models import print_line
from outrider.errors import OperationError

app = typer.Typer(
    name="keys",
    help="Make API keys for --api-key-file.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def keys() -> None:
    """Make API keys for --api-key-file."""


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="In logs and metrics.")],
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Most requests in a minute.  [default: any]")
    ] = None,
    max_concurrent_requests: Annotated[
        int | None, typer.Option(min=1, help="Most requests at once.  [default: any]")
    ] = None,
    append_to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add the line to a file of lines, and print the key alone."
        ),
    ] = None,
) -> None:
    """Print a new key, which is shown only now, and the line that lets it in."""
    from gateway.keys import file_line, new_key

    key = new_key()
    line = file_line(name, key, requests_per_minute, max_concurrent_requests)
    if append_to is None:
        print_line(f"{key}\n{line}")
        return
    _append(append_to, line, name)
    print_line(key)


def _append(path: Path, line: str, name: str) -> None:
    """Add a line; what is there stays as it is. Raises InputError, OperationError."""
    from gateway.keys import read_key_file
    from outrider.errors import InputError

    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before.strip():
            if not before.lstrip().startswith("{"):
                raise InputError(f"--append-to: {path} is no file of JSON lines; add it by hand")
            if any(key.name == name for key in read_key_file(path, "--append-to")):
                raise InputError(f"NAME: {name!r} has a key in {path} already")
        separator = "" if not before or before.endswith("\n") else "\n"
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{separator}{line}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise OperationError(f"--append-to: {path} cannot be written: {error}") from error
