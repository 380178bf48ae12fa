"""What a model folder says of its model before any weight is read.

Knows config.json and generation_config.json; knows no tokenizer and no engine.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from outrider.errors import InputError
from verifier_service.request_error import shorten


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What unset fields of a request mean: the generation config, else the neutral value.

    `max_tokens` None means the rest of the context.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Sizes and ids that proposers hear of before the engine is built."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults


def read_target_facts(folder: Path, max_model_len: int | None) -> TargetFacts:
    """Read a model folder; `max_model_len` None takes the model's own limit.

    Raises InputError naming the file and the value at fault.
    """
    if not folder.is_dir():
        raise InputError(f"model: {folder} is not a folder")
    if not (folder / "config.json").is_file():
        raise InputError(f"model: {folder} has no config.json")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except Exception as error:
        reason = shorten(" ".join(str(error).split()) or type(error).__name__, 300)
        raise InputError(f"model: {folder / 'config.json'} cannot be used: {reason}") from error
    generation = _read_json(folder / "generation_config.json")
    return TargetFacts(
        vocab_size=_vocab_size(config, folder),
        max_model_len=_context(config, folder, max_model_len),
        eos_token_ids=_eos_ids(generation.get("eos_token_id", config.eos_token_id)),
        defaults=_defaults(generation, folder),
    )


def _vocab_size(config: Any, folder: Path) -> int:
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int) or size < 1:
        raise InputError(
            f"model: {folder / 'config.json'} has vocab_size {size!r}; a positive number is needed"
        )
    return size


def _context(config: Any, folder: Path, asked: int | None) -> int:
    own = getattr(config, "max_position_embeddings", None)
    if not isinstance(own, int) or own < 2:
        if asked is None:
            raise InputError(
                f"model: {folder / 'config.json'} names no max_position_embeddings; "
                "give --max-model-len"
            )
        return asked
    if asked is None:
        return own
    if not 2 <= asked <= own:
        raise InputError(
            f"--max-model-len: {asked} is not allowed; this model takes 2 to {own} tokens"
        )
    return asked


def _eos_ids(value: object) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if isinstance(i, int))


def _defaults(generation: dict[str, Any], folder: Path) -> SamplingDefaults:
    where = folder / "generation_config.json"

    def number(name: str, low: float, high: float, neutral: float) -> float:
        value = generation.get(name)
        if value is None:
            return neutral
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise InputError(
                f"model: {where} has {name} {value!r}; it must be from {low} to {high}"
            )
        # A client's fields are float32: an unset field and the same value sent are one number.
        return float(struct.unpack("f", struct.pack("f", value))[0])

    max_tokens = int(number("max_new_tokens", 1, 2**31 - 1, 0))
    return SamplingDefaults(
        temperature=number("temperature", 0.0, 2.0, 1.0),
        top_p=number("top_p", 1e-6, 1.0, 1.0),
        top_k=max(0, int(number("top_k", -1, 2**31 - 1, 0))),
        min_p=number("min_p", 0.0, 1.0, 0.0),
        repetition_penalty=number("repetition_penalty", 1e-6, 1e6, 1.0),
        max_tokens=max_tokens or None,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"model: {path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"model: {path} is not a JSON object")
    return value
