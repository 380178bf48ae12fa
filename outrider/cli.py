"""The `outrider` command: its subcommands and how errors leave it.

Knows the subcommands' names; what each does is in outrider/commands.
"""

from __future__ import annotations

import sys

import typer

from outrider.commands import (
    advise,
    bench,
    gateway,
    info,
    keys,
    models,
    proposer,
    serve,
    traces,
    verifier,
    version,
)
from outrider.errors import CommandError

app = typer.Typer(
    name="outrider",
    help="Exact speculative decoding, split into services.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("proposer")(proposer.proposer)
app.command("verifier")(verifier.verifier)
app.command("gateway")(gateway.gateway)
app.command("info")(info.info)
app.command("advise")(advise.advise)
app.command("version")(version.version)
app.add_typer(bench.app, name="bench")
app.add_typer(models.app, name="models")
app.add_typer(keys.app, name="keys")
app.add_typer(traces.app, name="traces")


def main() -> None:
    """Run the command line; a CommandError becomes one line and its exit code."""
    try:
        app(prog_name="outrider")
    except CommandError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
