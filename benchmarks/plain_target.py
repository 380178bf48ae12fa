"""The target model through transformers alone, in float32: the judge of exactness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.divergence import Logits
from benchmarks.transformers_system import load_model


class PlainTarget:
    """A `divergence.Target`: one forward over the ids, no cache, no batch."""

    def __init__(self, model: Path) -> None:
        self._model = load_model(model, torch.float32)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], first: int) -> Logits:
        output = self._model(
            torch.tensor([list(ids)]), use_cache=False, logits_to_keep=len(ids) - first + 1
        )
        rows: Logits = output.logits[0].numpy()
        return rows
