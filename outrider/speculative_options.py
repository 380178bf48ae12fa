"""From what a user wrote about speculation to the configs of the proposers.

Knows `--speculative-config`, its shortcuts and how they go together; one proposer's keys are
speculative_entry.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from outrider.config import DEFAULT_SPECULATION, SpeculativeConfig, shorten
from outrider.errors import InputError
from outrider.speculative_entry import normal_keys, parse_entry
from outrider.speculative_keys import SHARED_KEYS

OPTION = "--speculative-config"


def parse_speculative_json(text: str) -> object:
    """The value of `--speculative-config TEXT`. Raises InputError where it is not JSON, or null."""
    try:
        value: object = json.loads(text, object_pairs_hook=_refuse_twins)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{OPTION}: not JSON ({error.msg} at column {error.colno}): {shorten(text)!r}; write "
            """for instance '{"method": "ngram", "num_speculative_tokens": 8}'"""
        ) from error
    except (ValueError, RecursionError) as error:  # A number or a nesting without end.
        raise InputError(f"{OPTION}: {shorten(text)!r} cannot be read: {error}") from error
    if value is None:
        raise InputError(f"{OPTION}: null is not an object of keys and values")
    return value


def parse_speculative_config(value: object, option: str = OPTION) -> tuple[SpeculativeConfig, ...]:
    """One config for each proposer, from a mapping or a list of mappings.

    Raises InputError naming the key, its value and what is allowed.
    """
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise InputError(f"{option}: the list is empty; use --no-speculation to turn it off")
    configs = tuple(
        parse_entry(entry, option if len(entries) == 1 else f"{option}[{index}]")
        for index, entry in enumerate(entries)
    )
    for key in SHARED_KEYS:
        values = [_shown(getattr(config, key)) for config in configs]
        if different := [item for item in values if item != values[0]]:
            raise InputError(
                f"{option}: {key} must be the same for all proposers, not {values[0]} and "
                f"{different[0]}"
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
    shortcuts = _given(method=method, model=model, tokens=tokens)
    flags = ", ".join(flag for flag, _ in shortcuts.values())
    if off:
        if value is not None or shortcuts:
            raise InputError(f"--no-speculation: cannot be combined with {flags or OPTION}")
        return ()
    if value is None:
        if not shortcuts:
            return DEFAULT_SPECULATION
        if set(shortcuts) == {"num_speculative_tokens"}:
            changed = {"num_speculative_tokens": tokens}
            return tuple(
                parse_entry(config.model_dump(exclude_unset=True) | changed, flags)
                for config in DEFAULT_SPECULATION
            )
    return combine_speculation(value, method=method, model=model, tokens=tokens)


def combine_speculation(
    value: object | None,
    *,
    method: str | None = None,
    model: str | None = None,
    tokens: int | None = None,
) -> tuple[SpeculativeConfig, ...]:
    """A config and its shortcuts, at least one of them given. Raises InputError."""
    shortcuts = _given(method=method, model=model, tokens=tokens)
    flags = ", ".join(flag for flag, _ in shortcuts.values())
    given = {key: item for key, (_, item) in shortcuts.items()}
    if value is None:
        return parse_speculative_config(given, flags)
    if not given:
        return parse_speculative_config(value)
    if not isinstance(value, Mapping):
        raise InputError(f"{flags}: cannot be combined with {OPTION} unless that is one object")
    entry = normal_keys(value, OPTION)
    for key, (flag, _) in shortcuts.items():
        if key in entry:
            raise InputError(f"{flag}: {OPTION} sets {key} too; give it once")
    return parse_speculative_config({**entry, **given})


def _given(
    *, method: str | None, model: str | None, tokens: int | None
) -> dict[str, tuple[str, object]]:
    """The shortcuts in use: key, then flag and value."""
    return {
        key: (flag, value)
        for key, flag, value in (
            ("method", "--spec-method", method),
            ("model", "--spec-model", model),
            ("num_speculative_tokens", "--spec-tokens", tokens),
        )
        if value is not None
    }


def _refuse_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose keys are told apart: JSON's last one would win in silence."""
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise InputError(f"{OPTION}: {shorten(key)!r} is given twice")
        result[key] = value
    return result


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
