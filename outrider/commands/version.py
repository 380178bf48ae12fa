"""`outrider version`."""

from __future__ import annotations

from importlib.metadata import version as installed_version

from outrider.commands.models import print_line


def version() -> None:
    """Print Outrider's version."""
    print_line(installed_version("outrider"))
