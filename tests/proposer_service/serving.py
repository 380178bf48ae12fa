"""Settings of a quick n-gram proposer, and a context it has a draft for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proposer_service.settings import ProposerSettings

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]


def settings_at(folder: Path, **changes: Any) -> ProposerSettings:
    fields: dict[str, Any] = {
        "listen": f"unix:{folder / 'p.sock'}",
        "method": "ngram",
        "prompt_lookup_min": 2,
        "max_draft_tokens": 8,
        "max_sequences": 8,
        "lookahead": False,
    }
    return ProposerSettings(**(fields | changes))
