"""A core from the verifier's options: engine, measured costs, controller, scheduler, thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from verifier_service.controller import Controller
from verifier_service.core import CountingCore
from verifier_service.costs import CostTable
from verifier_service.engines.base import CacheShape
from verifier_service.engines.torch_engine import TorchEngine
from verifier_service.loop import Core
from verifier_service.messages import DraftSource, ModelInfo
from verifier_service.scheduler import Scheduler
from verifier_service.settings import VerifierSettings
from verifier_service.simulation.recorder import RoundRecorder
from verifier_service.simulation.recording import Header


class Profiled(Protocol):
    """What is asked of an engine to know what its steps cost."""

    @property
    def cache(self) -> CacheShape: ...

    def profile(
        self, counts: Sequence[int], context: int, repeats: int = 5, sequences: int = 1
    ) -> dict[int, float]: ...


class ProfiledLong(Profiled, Protocol):
    """One whose model says how long a context may be."""

    @property
    def model(self) -> ModelInfo: ...


_log = logging.getLogger(__name__)

_PROFILE_COUNTS = (1, 2, 3, 5, 9, 17, 33)
# Where only requests that predict their answers have drafts, the start need not take as long.
_PREDICTION_COUNTS = (1, 3, 9)
_PROFILE_CONTEXT = 256
# The least count, and the most up to here, are measured again over a longer context, as long as the
# model and cache allow.
_LONG_COUNT, _LONG_CONTEXT = 9, 1280
# Where steps are captured: a step of many sequences costs what its own capture costs, which the
# rows of a single sequence do not tell (more than a block of them are no captured step at all).
_MANY_SEQUENCES, _MANY_ROWS = (2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 3, 5, 9, 17)


def build_core(settings: VerifierSettings, source: DraftSource) -> CountingCore:
    """Load the model, measure what a step costs, start the core's thread.

    Raises ModelLoadError. The core owns `source` from here on and closes it.
    """
    engine = TorchEngine(settings)
    speculative = settings.num_speculative_tokens > 0
    counts: tuple[int, ...] = _PROFILE_COUNTS
    if engine.captures:
        counts = profiled_rows(settings.draft_ceiling)
    if not speculative:
        counts = _PREDICTION_COUNTS if settings.draft_ceiling else (1,)
    profile = engine.profile(counts, _PROFILE_CONTEXT)
    attention = attention_costs(engine, profile) if speculative else (0.0, 0.0)
    _log.info("step cost by query tokens: %s", _told(profile))
    costs = CostTable.from_profile(profile, _PROFILE_CONTEXT, attention)
    if speculative and engine.captures:
        add_many(costs, engine, settings)
    controller = Controller(
        settings.draft_ceiling,
        costs,
        adaptive=settings.adaptive,
        schedule=settings.num_speculative_tokens_per_batch_size,
        plain_share=settings.plain_share if speculative else 0.0,
    )
    recorder = None
    if settings.record_rounds is not None:
        header = Header(
            settings.num_speculative_tokens, profile, _PROFILE_CONTEXT, attention, settings.device
        )
        recorder = RoundRecorder(Path(settings.record_rounds), header)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=settings.num_speculative_tokens,
        num_prediction_tokens=settings.draft_ceiling,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_waiting=settings.max_waiting_requests,
        prefix_caching=settings.enable_prefix_caching,
        prefill_stall_s=settings.prefill_stall_ms / 1e3,
        recorder=recorder,
    )
    return Core(
        engine,
        scheduler,
        controller,
        source,
        max_waiting=settings.max_waiting_requests,
        speculative=speculative,
    )


def profiled_rows(draft_ceiling: int) -> tuple[int, ...]:
    """Rows of a sequence that a captured step can have, the most among them."""
    return (*(rows for rows in _MANY_ROWS if rows <= draft_ceiling), draft_ceiling + 1)


def add_many(costs: CostTable, engine: Profiled, settings: VerifierSettings) -> None:
    """Measure steps of many sequences, too: each number takes about as long as one alone."""
    counts, cache = profiled_rows(settings.draft_ceiling), engine.cache
    for sequences in (n for n in _MANY_SEQUENCES if n <= settings.max_num_seqs):
        if cache.num_blocks // sequences * cache.block_size < _PROFILE_CONTEXT + max(counts):
            return
        measured = engine.profile(counts, _PROFILE_CONTEXT, sequences=sequences)
        profile = {sequences * rows: seconds for rows, seconds in measured.items()}
        costs.add(sequences, profile, sequences * _PROFILE_CONTEXT)
        _log.info("step cost of %d sequences by query tokens: %s", sequences, _told(profile))


def _told(profile: Mapping[int, float]) -> str:
    return ", ".join(f"{rows}: {seconds * 1e3:.1f} ms" for rows, seconds in profile.items())


def attention_costs(engine: ProfiledLong, profile: Mapping[int, float]) -> tuple[float, float]:
    """Seconds that each context token costs a step, and each (context token, row)."""
    few, many = min(profile), max(count for count in profile if count <= _LONG_COUNT)
    room = min(engine.model.max_model_len, engine.cache.num_blocks * engine.cache.block_size) - many
    longer = min(_LONG_CONTEXT, room) - _PROFILE_CONTEXT
    if longer <= 0 or few == many:
        return 0.0, 0.0
    measured = engine.profile((few, many), _PROFILE_CONTEXT + longer)
    rise = [max(measured[count] - profile[count], 0.0) / longer for count in (few, many)]
    per_row = max(rise[1] - rise[0], 0.0) / (many - few)
    return max(rise[0] - few * per_row, 0.0), per_row
