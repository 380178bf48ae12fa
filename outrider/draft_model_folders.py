"""The draft models of a speculative config, found and held against the target before one is loaded.

Knows folders, config.json and tokenizers; knows no engine and imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from outrider.checkpoints import ModelStore
from outrider.config import SpeculativeConfig
from outrider.draft_models import METHOD
from outrider.errors import InputError
from outrider.model_folders import Model, resolve_model
from outrider.vocabulary import fingerprint


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
