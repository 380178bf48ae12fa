"""Which steps of an engine are captured when it starts, and what each kind of them needs.

Knows settings, shapes and graphs; does not know the model, which is a function here, nor how a
device captures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verifier_service.engines.base import CacheShape
from verifier_service.engines.buckets import Buckets, PromptBuckets, Shapes
from verifier_service.engines.choosing import Chooser
from verifier_service.engines.graphs import BucketForward, Capture, GraphRunner
from verifier_service.engines.prefill_graphs import PrefillGraphs
from verifier_service.engines.step_buffers import StepBuffers
from verifier_service.settings import VerifierSettings

# Tokens of the largest decoding step that is captured.
_MAX_CAPTURED_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Capturing:
    """What the captures of one engine have in common.

    `new_capture` gives a capture with memory of its own: what one kind of step leaves for the host
    to read may lie there while the other is replayed. `keeps_apart` is `Chosen.keeps_apart`.
    """

    settings: VerifierSettings
    forward: BucketForward
    max_model_len: int
    cache: CacheShape
    chooser: Chooser
    device: torch.device
    new_capture: Callable[[], Capture]
    compiled: bool
    keeps_apart: Callable[[int], bool]

    def decoding(self) -> GraphRunner:
        """Verifications, with as many drafts as a round may have."""
        settings = self.settings
        most = settings.draft_ceiling + 1
        return self._runner(Buckets(settings.max_num_seqs, most, _MAX_CAPTURED_TOKENS))

    def prefill(self) -> PrefillGraphs | None:
        """Steps with prompts in them; None where the settings want none."""
        settings = self.settings
        most = min(settings.max_captured_prefill_tokens, settings.max_num_batched_tokens)
        buckets = PromptBuckets(settings.max_num_seqs, settings.draft_ceiling, most)
        if not len(buckets):
            return None
        apart = self.keeps_apart(settings.draft_ceiling + 1)
        return PrefillGraphs(self._runner(buckets), self.chooser, self.device, keeps_apart=apart)

    def _runner(self, buckets: Shapes) -> GraphRunner:
        longest = self.max_model_len + self.settings.draft_ceiling + 1
        buffers = StepBuffers(
            max(bucket.sequences for bucket in buckets),
            max(bucket.tokens for bucket in buckets),
            -(-longest // self.cache.block_size),
            self.cache,
            self.device,
        )
        return GraphRunner(
            self.forward,
            buckets,
            buffers,
            self.chooser.noise,
            self.settings.rejection_rule,
            self.new_capture(),
            # Compiled logarithms round otherwise than those of the choices that are not captured.
            compiled=self.compiled and not self.settings.batch_invariant,
        )
