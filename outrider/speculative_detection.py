"""Which method a `model` means where none is named, found as vLLM finds it.

Knows names and config.json; loads nothing and asks no hub: of a hub id only the name counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from outrider.errors import InputError
from outrider.speculative_names import MODEL_METHODS, MTP_ALIASES

# In this order: the first that is part of the lower-cased name decides.
_NAME_PARTS = (
    ("eagle-", "eagle"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
)
_ARCHITECTURES: Mapping[str, str] = {
    "MuseGlimmerAssistantModel": "dflash",
    "Qwen3DSparkModel": "dspark",
    "Qwen3OmniDSparkModel": "dspark",
    "Gemma4DSparkModel": "dspark",
}
_MODEL_TYPES: Mapping[str, str] = {
    "medusa": "medusa",
    "mlp_speculator": "mlp_speculator",
    "mtp": "mtp",
    **dict.fromkeys(MTP_ALIASES, "mtp"),
}


def detect_method(model: str) -> str:
    """The method that `model` means: a dotted Python name, `ngram`, a head or a draft model."""
    if _is_dotted_name(model):
        return "custom_class"
    if model in MODEL_METHODS:
        return MODEL_METHODS[model]
    lowered = model.lower()
    for part, method in _NAME_PARTS:
        if part in lowered:
            return method
    config = _read_config(Path(model).expanduser())
    architectures = config.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else ():
        if architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
    return _MODEL_TYPES.get(str(config.get("model_type")), "draft_model")


def refuse_speculators_checkpoint(folder: Path) -> None:
    """Raises InputError where the target's folder holds a drafter of the speculators library.

    vLLM swaps such a target for the model that the drafter was trained for.
    """
    speculators = _read_config(folder).get("speculators_config")
    if not isinstance(speculators, Mapping):
        return
    verifier = speculators.get("verifier")
    target = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    instead = f"; serve {target} itself" if isinstance(target, str) and target else ""
    raise InputError(
        f"MODEL: {folder} is a drafter of the speculators library "
        f"({speculators.get('algorithm', 'no algorithm named')}), not a target, and such drafters "
        f"are not served yet by Outrider{instead}"
    )


def _is_dotted_name(model: str) -> bool:
    if "/" in model:
        return False
    parts = model.split(".")
    return len(parts) >= 2 and all(part.isidentifier() for part in parts)


def _read_config(folder: Path) -> Mapping[str, object]:
    """A folder's config.json; empty where there is none that can be read: the name decides then."""
    try:
        value = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
