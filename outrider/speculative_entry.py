"""One proposer's mapping of keys and values: checked, or refused in one line.

Knows the order in which faults are told: names first, then the method, then values, then keys that
mean nothing for the method. Lists, shortcuts and files are speculative_options.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from outrider import speculative_names as names
from outrider.config import SpeculativeConfig, describe_validation, nearest, shorten
from outrider.errors import InputError
from outrider.speculative_detection import detect_method
from outrider.speculative_keys import KEYS
from outrider.speculative_unserved import UnservedKeys


def _listed(words: Iterable[str], conjunction: str) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *before, last = words
    return f"{', '.join(before)} {conjunction} {last}" if before else last


_SERVED = f"it serves {_listed(names.METHODS, 'and')}"
# What a method cannot do without, and what it is.
_REQUIRED = (
    ("draft_model", "model", ": a folder, a name or a hub id"),
    ("ngram", "num_speculative_tokens", ""),
    ("draft_model", "num_speculative_tokens", ""),
)


def parse_entry(entry: object, option: str) -> SpeculativeConfig:
    """The config that `entry` describes; a key that is null counts as left out.

    Raises InputError naming `option`, the key, its value and what is allowed.
    """
    given = _present(normal_keys(entry, option), option)
    method = _resolve_method(given, option)
    _check_unserved_values(given, option)
    if method == "ngram" and names.MODEL_METHODS.get(str(given.get("model"))) == method:
        del given["model"]
    for key, value in list(given.items()):
        row = KEYS[key]
        if row.refused and method in row.methods and value is row.neutral:
            del given[key]
            continue
        _refuse_misplaced(key, value, method, option)
    rule = given.get("rejection_sample_method")
    if isinstance(rule, str) and rule in names.REFUSED_REJECTION_METHODS:
        raise InputError(
            f"{option}: rejection_sample_method {rule!r} is not supported: "
            f"{names.REFUSED_REJECTION_METHODS[rule]}; Outrider has "
            f"{', '.join(names.REJECTION_SAMPLE_METHODS)}"
        )
    for owner, key, what in _REQUIRED:
        if method == owner and key not in given:
            raise InputError(f"{option}: method {method!r} requires {key}{what}")
    try:
        return SpeculativeConfig.model_validate({**given, "method": method})
    except ValidationError as error:
        raise InputError(describe_validation(error, option)) from error


def normal_keys(entry: object, option: str) -> dict[str, object]:
    """`entry` with underscores in its keys. Raises InputError where it is no mapping."""
    if isinstance(entry, str):
        raise InputError(_explain_string(entry, option))
    if not isinstance(entry, Mapping):
        raise InputError(
            f"{option}: {shorten(json.dumps(entry, default=str))} is not an object of keys and "
            "values"
        )
    values = {str(key).replace("-", "_"): item for key, item in entry.items()}
    if len(values) < len(entry):
        raise InputError(f"{option}: a key is given twice, with dashes and with underscores")
    return values


def _present(values: Mapping[str, object], option: str) -> dict[str, object]:
    for key in values:
        if key in KEYS:
            continue
        if key in names.SAMPLING_KEYS:
            raise InputError(f"{option}: {key} is a sampling parameter: send it with the request")
        if key in names.INTERNAL_KEYS:
            raise InputError(
                f"{option}: {key} is internal: the server fills it by itself; remove it"
            )
        if key in names.REPLACED_KEYS:
            raise InputError(f"{option}: {key}: {names.REPLACED_KEYS[key]}")
        known = [*KEYS, *names.REPLACED_KEYS]
        raise InputError(f"{option}: unknown key {key!r}{nearest(key, known)}")
    return {key: item for key, item in values.items() if item is not None}


def _resolve_method(given: Mapping[str, object], option: str) -> str:
    """A served method's name. Raises InputError for all others."""
    method, model = given.get("method"), given.get("model")
    found = ""
    if method is None:
        if model is None:
            raise InputError(f"{option}: method is required: {_listed(names.METHODS, 'or')}")
        if not isinstance(model, str) or not model:
            raise InputError(f"{option}: model: {shorten(repr(model))} is not a name")
        if model in names.METHODS and model not in names.MODEL_METHODS:
            raise InputError(
                f"{option}: model {model!r}: for method {model!r} write it as method, not as model"
            )
        method = detect_method(model)
        found = f", which is what model {shorten(model)!r} means,"
    if not isinstance(method, str):
        raise InputError(f"{option}: method: {shorten(repr(method))} is not a name")
    if method in names.METHODS:
        return method
    if method in names.NICKNAMES:
        found = f", that is {names.NICKNAMES[method]!r} with parallel_drafting,"
    elif method in names.MTP_ALIASES:
        found = ", an old name of 'mtp',"
    elif method not in names.UNSERVED_METHODS:
        known = (*names.METHODS, *names.UNSERVED_METHODS)
        raise InputError(
            f"{option}: method {shorten(method)!r} is unknown; allowed are "
            f"{_listed(names.METHODS, 'and')}{nearest(method, known)}"
        )
    why = names.UNSERVED_METHODS.get(method, "")
    raise InputError(
        f"{option}: method {method!r}{found} is not served yet by Outrider: {_SERVED}"
        f"{f'; {why}' if why else ''}"
    )


def _check_unserved_values(given: Mapping[str, object], option: str) -> None:
    values = {key: item for key, item in given.items() if key in UnservedKeys.model_fields}
    try:
        UnservedKeys.model_validate(values, context=given)
    except ValidationError as error:
        raise InputError(describe_validation(error, option)) from error


def _refuse_misplaced(key: str, value: object, method: str, option: str) -> None:
    row = KEYS[key]
    shown = f"{option}: {key} ({shorten(repr(value))})"
    if method in row.methods:
        if row.refused:
            raise InputError(f"{shown} is not supported: {row.refused}")
        return
    served = [name for name in row.methods if name in names.METHODS]
    belongs = f"belongs to {_methods(served or row.methods)}"
    unserved = "" if served and not row.refused else ", not served yet by Outrider"
    instead = f"; {row.instead}" if row.instead else ""
    raise InputError(f"{shown} {belongs}{unserved}; it means nothing for {method!r}{instead}")


def _methods(methods: Iterable[str]) -> str:
    quoted = [repr(method) for method in methods]
    return f"method{'' if len(quoted) == 1 else 's'} {_listed(quoted, 'and')}"


def _explain_string(text: str, option: str) -> str:
    try:
        decoded: object = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    listed = decoded if isinstance(decoded, list) else [decoded]
    entries = [entry for entry in listed if isinstance(entry, dict) and entry]
    if not entries or len(entries) < len(listed):
        return f"{option}: {shorten(text)!r} is a string, not an object of keys and values"
    return (
        f"{option}: JSON escaped into a string; write it as a mapping:\nspeculative-config:"
        f"{_as_yaml(entries, listed=isinstance(decoded, list))}"
    )


def _as_yaml(entries: Sequence[Mapping[str, object]], *, listed: bool) -> str:
    """The lines below `speculative-config:`, each with a line break in front."""
    return "".join(
        f"\n{'- ' if listed and not index else '  '}{key}: {json.dumps(item)}"
        for entry in entries
        for index, (key, item) in enumerate(entry.items())
    )
