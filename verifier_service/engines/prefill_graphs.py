"""Steps with prompts in them, replayed where they are short: of many operators the host's launches
take longer than the device's work.

Knows chunks, captured steps and how to choose beside them; does not know the model. Rounds that
share the step are verified by the same forward: weights are read once, not twice. A replay gives
logits of the rows that choose, so prompts whose own log-probabilities are asked for are not served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from verifier_service.engines.base import Chunk, Meanwhile, Verdict, no_more
from verifier_service.engines.buckets import Bucket
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.graphs import GraphRunner, Launched
from verifier_service.engines.layout import pack_choices
from verifier_service.engines.logprobs import with_logprobs

# Keys that rounds may have behind them where they share a prompt's forward and its attention, which
# reads each key once for every query head; a forward of the rounds' own reads it once, and the
# weights once more.
_MOST_SHARED_KEYS = 24_576


def _nothing(launched: Launched) -> None:
    """Nothing is begun behind it."""


class PrefillGraphs:
    """Captured prefill of one engine; `keeps_apart`: rounds have an attention of their own in it.

    Not thread-safe.
    """

    def __init__(
        self, runner: GraphRunner, chooser: Chooser, device: torch.device, *, keeps_apart: bool
    ) -> None:
        self._keeps_apart = keeps_apart
        self._runner = runner
        self._chooser = chooser
        self._device = device

    @property
    def runner(self) -> GraphRunner:
        """Where steps are begun ahead, such as this `serves`."""
        return self._runner

    def serves(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a capture serves such a step."""
        return self._bucket(chunks) is not None

    def serve(
        self,
        chunks: Sequence[Chunk],
        meanwhile: Meanwhile = no_more,
        behind: Callable[[Launched], None] = _nothing,
    ) -> list[Verdict | None] | None:
        """Verdicts as `Engine.run`; None, and nothing done, where no capture serves the step.

        `behind` is called as soon as the step is on its way, if the device chooses its tokens.
        """
        bucket = self._bucket(chunks)
        if bucket is None:
            return None
        launched = self._runner.launch(chunks, bucket)
        sampling = [chunk for chunk in chunks if chunk.samples]
        if not sampling or launched.result is not None:
            if sampling:
                behind(launched)
            meanwhile()
            told = launched.verdicts(len(chunks)) if sampling else []
            return [told[row] if chunk.samples else None for row, chunk in enumerate(chunks)]
        logits = launched.logits[: sum(chunk.drafts + 1 for chunk in sampling)]
        choices = pack_choices(sampling, self._device)
        read = self._chooser.begin(logits, choices, sampling)
        meanwhile()
        verdicts = iter(with_logprobs(logits, sampling, read()))
        return [next(verdicts) if chunk.samples else None for chunk in chunks]

    def _bucket(self, chunks: Sequence[Chunk]) -> Bucket | None:
        if any(chunk.prompt_logprobs for chunk in chunks):
            return None
        if not self._keeps_apart:
            rounds = (chunk for chunk in chunks if len(chunk.ids) == chunk.drafts + 1)
            if sum(chunk.start for chunk in rounds) > _MOST_SHARED_KEYS:
                return None
        return self._runner.find(chunks)
