"""`--config FILE` of a subcommand: options from YAML, below those of the command line.

Knows how a subcommand's function declares its options; what they mean is the subcommand's.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from outrider.errors import InputError

# The metavar of options whose text is JSON: in a file they are written as YAML.
JSON = "JSON"


def _use_file(context: typer.Context, file: Path | None) -> Path | None:
    if file is not None:
        context.default_map = read_defaults(inspect.unwrap(context.command.callback), file)  # type: ignore[arg-type]
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


def read_defaults(command: Callable[..., object], file: Path) -> dict[str, Any]:
    """The values of `file` by the parameters of `command`, as its command line would bring them.

    Raises InputError naming the file, the option, its value and what is allowed.
    """
    # Only who has such a file waits for these.
    from pydantic import ConfigDict, Field, ValidationError, create_model

    from outrider.config import shorten
    from outrider.config_files import labels, read_options

    hints = _declared(command)
    names = {alias: name for name, (_, info) in hints.items() for alias in _names(name, info)}
    called = labels(file)
    values: dict[str, Any] = {}
    for key, value in read_options(file, names).items():
        name = names[key]
        if name in values:
            raise InputError(f"{called(key)}: it is given twice, under two names")
        if value is not None:
            annotation, info = hints[name]
            if info.metavar == JSON:
                value = _as_json(name, value, called(key))
            elif list[str] in typing.get_args(annotation) and isinstance(value, str):
                value = [value]
            values[name] = value
    fields: dict[str, Any] = {
        name: (annotation, Field(None, ge=info.min, le=info.max))
        for name, (annotation, info) in hints.items()
        if name in values
    }
    model = create_model("Options", __config__=ConfigDict(strict=True), **fields)
    try:
        model.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        shown = shorten(repr(problem["input"]))
        raise InputError(f"{called(str(problem['loc'][0]))}: {shown}: {message}") from error
    return values


def _declared(command: Callable[..., object]) -> Mapping[str, tuple[Any, ParameterInfo]]:
    """Type and declaration of each parameter that a user may set in a file."""
    result: dict[str, tuple[Any, ParameterInfo]] = {}
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        infos = [part for part in typing.get_args(hint) if isinstance(part, ParameterInfo)]
        if not infos or infos[0].hidden or name == "config":
            continue
        annotation = typing.get_args(hint)[0]
        if Path in (annotation, *typing.get_args(annotation)):
            annotation = str | None
        result[name] = (annotation, infos[0])
    return result


def _names(name: str, info: ParameterInfo) -> set[str]:
    """What an option is called in a file: its long names, with underscores."""
    if isinstance(info, ArgumentInfo) or not isinstance(info, OptionInfo):
        return {name}
    # Inside Annotated the first name stands where a default would.
    declared = [info.default, *(info.param_decls or ())]
    long = [str(decl).split("/")[0] for decl in declared if str(decl).startswith("--")]
    return {decl.lstrip("-").replace("-", "_") for decl in long} or {name}


def _as_json(name: str, value: object, label: str) -> str:
    if isinstance(value, str):
        if name == "speculative_config":
            from outrider.speculative_entry import normal_keys

            normal_keys(value, label)
        raise InputError(f"{label}: {value!r} is a string; write it as YAML, without quotes")
    return json.dumps(value, default=str)
