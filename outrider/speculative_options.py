"""From what a user wrote about speculation to the configs of the proposers.

Knows `--speculative-config`, its shortcuts and the words of every refusal; names that vLLM has and
Outrider does not serve yet are refused by name (speculative_names.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import ValidationError

from outrider import speculative_names as names
from outrider.config import (
    DEFAULT_SPECULATION,
    SpeculativeConfig,
    describe_validation,
    nearest,
    shorten,
)
from outrider.errors import InputError

OPTION = "--speculative-config"


def parse_speculative_json(text: str) -> object:
    """The value of `--speculative-config TEXT`. Raises InputError where it is not JSON."""
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{OPTION}: not JSON ({error.msg} at column {error.colno}): {shorten(text)}; write "
            """for instance '{"method": "ngram", "num_speculative_tokens": 8}'"""
        ) from error
    return value


def parse_speculative_config(value: object, option: str = OPTION) -> tuple[SpeculativeConfig, ...]:
    """One config for each proposer, from a mapping or a list of mappings.

    Raises InputError naming the key, its value and what is allowed.
    """
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise InputError(f"{option}: the list is empty; use --no-speculation to turn it off")
    configs = tuple(
        _parse_entry(entry, option if len(entries) == 1 else f"{option}[{index}]")
        for index, entry in enumerate(entries)
    )
    rules = sorted({config.rejection_sample_method for config in configs})
    if len(rules) > 1:
        raise InputError(
            f"{option}: rejection_sample_method must be the same for all proposers, not "
            f"{' and '.join(rules)}"
        )
    return configs


def resolve_speculation(
    value: object | None,
    *,
    method: str | None = None,
    model: str | None = None,
    tokens: int | None = None,
    off: bool = False,
) -> tuple[SpeculativeConfig, ...]:
    """What the options of `serve` together ask for; empty when speculation is off.

    `method`, `model` and `tokens` are the shortcuts `--spec-method`, `--spec-model` and
    `--spec-tokens`; `tokens` alone changes K of the default proposers. Raises InputError where
    two options contradict each other.
    """
    shortcuts: dict[str, tuple[str, object]] = {
        key: (flag, given)
        for key, flag, given in (
            ("method", "--spec-method", method),
            ("model", "--spec-model", model),
            ("num_speculative_tokens", "--spec-tokens", tokens),
        )
        if given is not None
    }
    flags = ", ".join(flag for flag, _ in shortcuts.values())
    if off:
        if value is not None or shortcuts:
            raise InputError(f"--no-speculation: cannot be combined with {flags or OPTION}")
        return ()
    given = {key: item for key, (_, item) in shortcuts.items()}
    if value is None:
        if not given:
            return DEFAULT_SPECULATION
        if set(given) == {"num_speculative_tokens"}:
            defaults = [config.model_dump(exclude_unset=True) for config in DEFAULT_SPECULATION]
            return parse_speculative_config([item | given for item in defaults], flags)
        return parse_speculative_config(given, flags)
    if not given:
        return parse_speculative_config(value)
    if not isinstance(value, Mapping):
        raise InputError(f"{flags}: cannot be combined with {OPTION} unless that is one object")
    present = {_normal(key) for key in value}
    for key, (flag, _) in shortcuts.items():
        if key in present:
            raise InputError(f"{flag}: {OPTION} sets {key} too; give it once")
    return parse_speculative_config({**value, **given})


def _parse_entry(entry: object, option: str) -> SpeculativeConfig:
    if isinstance(entry, str):
        raise InputError(_explain_string(entry, option))
    if not isinstance(entry, Mapping):
        raise InputError(
            f"{option}: {shorten(json.dumps(entry, default=str))} is not an object of keys and "
            "values"
        )
    values = {_normal(key): item for key, item in entry.items()}
    if len(values) < len(entry):
        raise InputError(f"{option}: a key is given twice, with dashes and with underscores")
    for key in values:
        _refuse_known_trouble(key, option)
    given = {key: item for key, item in values.items() if item is not None}
    if "model" in given and given.get("method") is None and _model_method(given["model"]):
        given["method"] = _model_method(given.pop("model"))
    elif given.get("method") == "ngram" and _model_method(given.get("model")) == "ngram":
        given.pop("model")
    for key in ("method", "rejection_sample_method"):
        if key in given and not isinstance(given[key], str):
            raise InputError(f"{option}: {key}: {shorten(repr(given[key]))} is not a name")
    method = given.get("method")
    if method in names.UNSUPPORTED_METHODS:
        raise InputError(
            f"{option}: method {method!r} is not supported yet by Outrider 0.1; "
            f"it has {' and '.join(names.METHODS)}"
        )
    for key, item in given.items():
        if key in names.UNSUPPORTED_KEYS:
            raise InputError(
                f"{option}: {key} ({shorten(repr(item))}) is not supported yet by Outrider 0.1"
            )
    if method is None:
        raise InputError(f"{option}: method is required: {' or '.join(names.METHODS)}")
    if method not in names.METHODS:
        known = {*names.METHODS, *names.UNSUPPORTED_METHODS}
        raise InputError(
            f"{option}: method {method!r} is unknown; allowed are {' and '.join(names.METHODS)}"
            f"{nearest(str(method), known)}"
        )
    for key in given:
        methods = names.SUPPORTED_KEYS[key]
        if method not in methods:
            raise InputError(
                f"{option}: {key} belongs to method {methods[0]!r}; it means nothing for {method!r}"
            )
    if given.get("rejection_sample_method") in names.UNSUPPORTED_REJECTION_METHODS:
        raise InputError(
            f"{option}: rejection_sample_method {given['rejection_sample_method']!r} is not "
            f"supported: it changes what the model says; Outrider has "
            f"{', '.join(names.REJECTION_SAMPLE_METHODS)}"
        )
    if method == "ngram" and "num_speculative_tokens" not in given:
        raise InputError(f"{option}: method 'ngram' requires num_speculative_tokens")
    try:
        return SpeculativeConfig.model_validate(given)
    except ValidationError as error:
        raise InputError(describe_validation(error, option)) from error


def _refuse_known_trouble(key: str, option: str) -> None:
    if key in names.SUPPORTED_KEYS or key in names.UNSUPPORTED_KEYS:
        return
    if key in names.SAMPLING_KEYS:
        raise InputError(f"{option}: {key} is a sampling parameter: send it with the request")
    if key in names.INTERNAL_KEYS:
        raise InputError(f"{option}: {key} is internal: the server fills it by itself; remove it")
    if key in names.REPLACED_KEYS:
        raise InputError(f"{option}: {key}: {names.REPLACED_KEYS[key]}")
    known = {*names.SUPPORTED_KEYS, *names.UNSUPPORTED_KEYS, *names.REPLACED_KEYS}
    raise InputError(f"{option}: unknown key {key!r}{nearest(key, known)}")


def _explain_string(text: str, option: str) -> str:
    try:
        decoded: object = json.loads(text)
    except json.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        return f"{option}: {shorten(text)!r} is a string, not an object of keys and values"
    lines = "".join(f"\n  {key}: {json.dumps(item)}" for key, item in decoded.items())
    return (
        f"{option}: JSON escaped into a string; write it as a mapping:\nspeculative-config:{lines}"
    )


def _model_method(model: object) -> str:
    return names.MODEL_METHODS.get(model, "") if isinstance(model, str) else ""


def _normal(key: object) -> str:
    return str(key).replace("-", "_")
