"""The draft models of a speculative config, found and held against the target before one is loaded.

Knows folders, config.json and tokenizers; knows no engine and imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.checkpoints import ModelStore
from outrider.config import SpeculativeConfig
from outrider.errors import InputError
from outrider.model_folders import Model, resolve_model
from outrider.vocabulary import fingerprint

if TYPE_CHECKING:
    from proposer_service.draft_model_settings import DraftModelSettings

METHOD = "draft_model"
DEVICES = r"auto|cpu|cuda(:\d+)?"
DTYPES = ("auto", "float32", "bfloat16")
# For the keys and values of a draft model beside a target, which takes what is left of the memory.
SHARED_CACHE_BYTES = 2 << 30
# How long a step may wait for drafts: a model-free method answers in a few milliseconds, a draft
# model runs once for each draft. Only what is late costs more than it takes.
DEADLINE_MS, DRAFT_MODEL_DEADLINE_MS = 10.0, 1000.0


def deadline_ms(configs: Sequence[SpeculativeConfig]) -> float:
    """The draft deadline where nobody says how long it is."""
    drafting = any(config.method == METHOD for config in configs)
    return DRAFT_MODEL_DEADLINE_MS if drafting else DEADLINE_MS


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a draft model runs and in what; no part of a speculative config.

    `kv_cache_memory_bytes` None takes what is free. Raises InputError naming the option.
    """

    device: str = "auto"
    dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(DEVICES, self.device):
            raise InputError(f"--device: {self.device!r} is not one of auto, cpu, cuda, cuda:N")
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")


def draft_model_settings(
    config: SpeculativeConfig, placement: Placement | None = None
) -> DraftModelSettings | None:
    """What a proposer of `config` loads; None where its method loads no model."""
    from proposer_service.draft_model_settings import DraftModelSettings

    if config.model is None:
        return None
    placement = placement or Placement()
    return DraftModelSettings(
        model=config.model,
        device=placement.device,
        dtype=placement.dtype,
        max_model_len=config.max_model_len,
        quantization=config.quantization,
        revision=config.revision,
        enforce_eager=config.enforce_eager,
        draft_sample_method=config.draft_sample_method,
        kv_cache_memory_bytes=placement.kv_cache_memory_bytes,
    )


def find_draft_models(
    configs: Sequence[SpeculativeConfig],
    target: Model,
    store: ModelStore,
    pull: Callable[[str], Path],
    *,
    max_model_len: int | None = None,
    enforce_eager: bool = False,
    option: str,
) -> tuple[SpeculativeConfig, ...]:
    """`configs` with each draft model's folder for its name, and what it takes over of the target.

    That is `max_model_len`, None for the target's own limit, where it is the lower one, and
    `enforce_eager`, where the config says nothing of it. Raises InputError naming `option` where a
    draft model does not fit the target; where there is none, as `resolve_model` does.
    """
    of_target = max_model_len or _own_limit(target.folder)
    result = []
    for config in configs:
        if config.method != METHOD or config.model is None:
            result.append(config)
            continue
        found = resolve_model(config.model, store, pull, f"{option}: model", config.revision)
        _check_vocabulary(found, config.model, target, option)
        # Only what was written or follows is set, so that a child is told nothing else.
        values = config.model_dump(exclude_unset=True, exclude={"revision"})
        values["model"] = str(found.folder)
        if limit := _limit(config, found, of_target, option):
            values["max_model_len"] = limit
        if enforce_eager:
            values.setdefault("enforce_eager", True)
        result.append(SpeculativeConfig.model_validate(values))
    return tuple(result)


def _limit(
    config: SpeculativeConfig, draft: Model, of_target: int | None, option: str
) -> int | None:
    """The draft model's longest sequence, None where that is its own limit. Raises InputError."""
    of_draft, asked = _own_limit(draft.folder), config.max_model_len
    for owner, limit in ((f"the draft model {config.model}", of_draft), ("the target", of_target)):
        if asked is not None and limit is not None and asked > limit:
            raise InputError(f"{option}: max_model_len: {asked}: {owner} takes at most {limit}")
    if asked is None and of_draft is not None and of_target is not None and of_target < of_draft:
        return of_target
    return asked


def _own_limit(folder: Path) -> int | None:
    """The longest sequence that a model says it takes."""
    config = _read(folder / "config.json")
    for part in (config, config.get("text_config")):
        limit = part.get("max_position_embeddings") if isinstance(part, dict) else None
        if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 2:
            return limit
    return None


def _check_vocabulary(draft: Model, name: str, target: Model, option: str) -> None:
    """As far as files tell; proposer and verifier compare what their tokenizers made of them."""
    of_draft, of_target = _vocabulary(draft.folder), _vocabulary(target.folder)
    if of_draft and of_target and fingerprint(of_draft) != fingerprint(of_target):
        raise InputError(
            f"{option}: model: {name} drafts in another vocabulary ({len(of_draft)} tokens) than "
            f"the target's ({len(of_target)} tokens); a draft model must have the target's "
            "tokenizer"
        )


def _vocabulary(folder: Path) -> dict[str, int]:
    """Token by token what a folder's tokenizer knows; empty where its files do not say it."""
    fast = _read(folder / "tokenizer.json")
    model, added = fast.get("model"), fast.get("added_tokens")
    tokens = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(tokens, list):  # Pairs of token and score, in the order of their ids.
        tokens = {pair[0]: index for index, pair in enumerate(tokens) if isinstance(pair, list)}
    if not isinstance(tokens, dict):
        return {}
    named = _read(folder / "tokenizer_config.json").get("added_tokens_decoder")
    try:
        vocabulary = {str(token): int(index) for token, index in tokens.items()}
        for entry in added if isinstance(added, list) else ():
            vocabulary[entry["content"]] = int(entry["id"])
        for index, entry in named.items() if isinstance(named, dict) else ():
            vocabulary[entry["content"]] = int(index)
    except (KeyError, TypeError, ValueError):
        return {}
    return vocabulary


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # What reads it in earnest says what is wrong with it.
    return value if isinstance(value, dict) else {}
