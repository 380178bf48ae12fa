"""Steps that read prompts, replayed where they are short: of many operators the host's launches
take longer than the device's work.

Knows chunks, captured steps and how to choose beside them; does not know the model. A replay gives
the logits of each sequence's last token only, so prompts whose own log-probabilities are asked for
are not served.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.graphs import GraphRunner
from verifier_service.engines.layout import pack_choices
from verifier_service.engines.logprobs import with_logprobs


class PrefillGraphs:
    """Captured prefill of one engine. Not thread-safe."""

    def __init__(self, runner: GraphRunner, chooser: Chooser, device: torch.device) -> None:
        self._runner = runner
        self._chooser = chooser
        self._device = device

    def serve(self, chunks: Sequence[Chunk]) -> list[Verdict | None] | None:
        """One verdict for each chunk that samples, as `Engine.run`; None where not captured."""
        if any(chunk.drafts or chunk.prompt_logprobs for chunk in chunks):
            return None
        bucket = self._runner.find(chunks)
        if bucket is None:
            return None
        launched = self._runner.launch(chunks, bucket)
        rows = [row for row, chunk in enumerate(chunks) if chunk.samples]
        verdicts: list[Verdict | None] = [None] * len(chunks)
        if not rows:
            return verdicts
        if launched.result is not None:
            told = launched.verdicts(len(chunks))
            return [told[row] if chunk.samples else None for row, chunk in enumerate(chunks)]
        sampling = [chunks[row] for row in rows]
        logits = launched.logits[rows]
        choices = pack_choices(sampling, self._device)
        chosen = self._chooser.verdicts(logits, choices, sampling)
        for row, verdict in zip(rows, with_logprobs(logits, sampling, chosen), strict=True):
            verdicts[row] = verdict
        return verdicts
