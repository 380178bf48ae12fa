"""`--config FILE` of a subcommand: options from YAML, below those of the command line.

Knows a subcommand's options as typer's own copy of click has them, which has no public types; what
they mean is the subcommand's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The metavar of options whose text is JSON: in a file they are written as YAML.
JSON = "JSON"


def _use_file(context: typer.Context, file: Path | None) -> Path | None:
    if file is None:
        return None
    from outrider.config_files import labels, read_options

    parameters = _by_name(context.command)
    options = read_options(file, parameters)
    called = labels(file)
    context.default_map = {
        str(parameters[key].name): _value(context, parameters[key], value, called(key))
        for key, value in options.items()
        if value is not None
    }
    return file


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="YAML file of these options, without dashes in front.",
        is_eager=True,
        callback=_use_file,
    ),
]


def _by_name(command: Any) -> Mapping[str, Any]:
    """Every name that an option has, with underscores; those set by no user are left out."""
    return {
        name.lstrip("-").replace("-", "_"): parameter
        for parameter in command.params
        if not (getattr(parameter, "hidden", False) or parameter.name in ("config", "help"))
        for name in parameter.opts
        if name.startswith("--") or not name.startswith("-")
    }


def _value(context: typer.Context, parameter: Any, value: Any, label: str) -> Any:
    """A value from a file as the command line would have brought it. Raises InputError."""
    if getattr(parameter, "metavar", None) == JSON:
        return _as_json(parameter, value, label)
    for item in value if parameter.multiple and isinstance(value, list) else [value]:
        allowed, what = _kind(parameter)
        if not allowed(item):
            raise InputError(f"{label}: {item!r}: {what} is needed")
    if parameter.multiple and not isinstance(value, list):
        value = [value]
    try:
        parameter.type_cast_value(context, value)
    except typer.BadParameter as error:
        reason = error.message.rstrip(".")
        raise InputError(f"{label}: {value!r}: {reason[:1].lower()}{reason[1:]}") from error
    return value


def _as_json(parameter: Any, value: Any, label: str) -> str:
    if isinstance(value, str):
        from outrider.speculative_entry import normal_keys

        if parameter.name == "speculative_config":
            normal_keys(value, label)
        raise InputError(f"{label}: {value!r} is a string; write it as YAML, without quotes")
    return json.dumps(value, default=str)


def _kind(parameter: Any) -> tuple[Callable[[Any], bool], str]:
    if getattr(parameter, "is_flag", False):
        return lambda value: isinstance(value, bool), "true or false"
    kind = parameter.type.name
    if kind.startswith("integer"):
        return _is_whole, "a whole number"
    if kind.startswith("float"):
        return lambda value: _is_whole(value) or isinstance(value, float), "a number"
    return lambda value: isinstance(value, str) and bool(value), "a string"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
