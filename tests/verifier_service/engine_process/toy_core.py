"""Cores over the toy target, as `build_core` makes them: for a child process and for this one.

A child is told to build one by this module's name, so that what it runs is a real core over a model
of milliseconds.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.toy_engine import ToySource, random_guess
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from tests.writer import KNOWN, Writer, WriterEngine
from verifier_service.controller import Controller
from verifier_service.core import CountingCore
from verifier_service.costs import CostTable
from verifier_service.engines.base import Chunk, Verdict
from verifier_service.engines.loading import ModelLoadError
from verifier_service.loop import Core
from verifier_service.messages import DraftSource, NoDrafts
from verifier_service.scheduler import Scheduler
from verifier_service.settings import VerifierSettings

BUILD = f"{__name__}:build"
# Served under this name a model takes some milliseconds a step, so that answers take seconds.
SLOW = "slow"
# Under these it does not load; the last one says in its folder that it tries.
REFUSED, BROKEN, ENDLESS = "refused", "broken", "endless"
LOADING = "loading"


class PacedEngine(WriterEngine):
    """Takes `seconds` for each step, besides what the toy target takes."""

    seconds = 0.0

    def run(self, chunks: list[Chunk], **options: Any) -> list[Verdict | None]:
        time.sleep(self.seconds)
        return super().run(chunks, **options)


def build(settings: VerifierSettings, source: DraftSource) -> CountingCore:
    """A core that drafts at random where K is above 0 and no proposer is attached."""
    if settings.served_model_name == REFUSED:
        raise ModelLoadError("the weights are missing")
    if settings.served_model_name == BROKEN:
        raise MemoryError("no room")
    if settings.served_model_name == ENDLESS:
        (Path(settings.model) / LOADING).touch()
        time.sleep(3600)
    engine = PacedEngine(
        Writer.of(KNOWN, len(byte_level_tokenizer())),
        num_blocks=512,
        block_size=8,
        rule=settings.rejection_rule,
    )
    engine.seconds = 0.005 if settings.served_model_name == SLOW else 0.0
    controller = Controller(
        settings.draft_ceiling,
        CostTable.from_profile({1: 1e-3, 2: 1.1e-3, 5: 1.2e-3}, 64),
        adaptive=False,
    )
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=settings.num_speculative_tokens,
        num_prediction_tokens=settings.draft_ceiling,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=128,
        max_waiting=settings.max_waiting_requests,
    )
    if isinstance(source, NoDrafts) and settings.num_speculative_tokens:
        source = ToySource(random_guess)
    return Core(
        engine,
        scheduler,
        controller,
        source,
        max_waiting=settings.max_waiting_requests,
        speculative=settings.num_speculative_tokens > 0,
    )
