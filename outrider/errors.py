"""Errors that end a command with one line instead of a traceback.

Knows exit codes; does not know what went wrong: the message says it.
"""

from __future__ import annotations

from typing import ClassVar


class CommandError(Exception):
    """Ends a command: its text is printed after `error: `, `exit_code` is returned.

    The text is one sentence that names the thing, its value and what is allowed or what to do.
    """

    exit_code: ClassVar[int] = 1


class InputError(CommandError):
    """The command was asked for something wrong: an option, a file, a model folder."""

    exit_code: ClassVar[int] = 2


class OperationError(CommandError):
    """The command was asked for something right that failed: network, disk, a dead service."""

    exit_code: ClassVar[int] = 1
