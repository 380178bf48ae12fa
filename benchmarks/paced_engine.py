"""An engine that takes the host's time and the device's as told, and computes nothing.

Knows how a step blocks: so much of Python's own work, as launching operators is, then so much of
waiting with the interpreter's lock let go, as a device's work is. `build_decode` and `build_launch`
make cores over it, for a thread here or a process elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from verifier_service.controller import Controller
from verifier_service.core import CountingCore
from verifier_service.costs import CostTable
from verifier_service.engines.base import (
    CacheShape,
    Chunk,
    GoesOn,
    Joining,
    Meanwhile,
    Verdict,
    no_more,
    nobody,
)
from verifier_service.loop import Core
from verifier_service.messages import DraftSource, ModelInfo
from verifier_service.scheduler import Scheduler
from verifier_service.settings import VerifierSettings

MAX_MODEL_LEN = 4096
_BLOCK_SIZE = 16
# Ids that every vocabulary of interest has, its special ones left out.
_FIRST_ID, _IDS = 1000, 20_000
_STRIDE = 7919


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one step: Python's own work, then the device's."""

    host_s: float
    device_s: float


# A captured step: a replay and its wait. A step whose operators are launched one by one: a prefill.
DECODE = Pace(host_s=0.0, device_s=0.007)
LAUNCH = Pace(host_s=0.010, device_s=0.007)


class PacedEngine:
    """Gives every chunk that samples one token, after the time that `pace` says."""

    def __init__(self, pace: Pace, *, vocab_size: int, sequences: int) -> None:
        self._pace = pace
        self._vocab_size = vocab_size
        self._blocks = sequences * MAX_MODEL_LEN // _BLOCK_SIZE
        self._turns = round(pace.host_s / _turn_s()) if pace.host_s else 0

    @property
    def model(self) -> ModelInfo:
        return ModelInfo("paced", self._vocab_size, MAX_MODEL_LEN, (), "paced", "none", "none")

    @property
    def cache(self) -> CacheShape:
        return CacheShape(self._blocks, _BLOCK_SIZE)

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        _spin(self._turns)
        ends = time.perf_counter() + self._pace.device_s
        # The device works on its own from here on.
        meanwhile()
        time.sleep(max(ends - time.perf_counter(), 0.0))
        return [_verdict(chunk) if chunk.samples else None for chunk in chunks]

    def device_busy_s(self) -> float | None:
        return None

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        return

    def close(self) -> None:
        return


def build_decode(settings: VerifierSettings, source: DraftSource) -> CountingCore:
    """A core whose steps are the device's alone."""
    return _build(settings, source, DECODE)


def build_launch(settings: VerifierSettings, source: DraftSource) -> CountingCore:
    """A core whose steps are launched by 10 ms of Python."""
    return _build(settings, source, LAUNCH)


def _build(settings: VerifierSettings, source: DraftSource, pace: Pace) -> CountingCore:
    engine = PacedEngine(pace, vocab_size=_FIRST_ID + _IDS, sequences=settings.max_num_seqs)
    controller = Controller(0, CostTable.from_profile({1: pace.device_s}))
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=0,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_waiting=settings.max_waiting_requests,
    )
    return Core(
        engine,
        scheduler,
        controller,
        source,
        max_waiting=settings.max_waiting_requests,
        speculative=False,
    )


def _verdict(chunk: Chunk) -> Verdict:
    return Verdict(0, [_FIRST_ID + (chunk.ids[-1] + _STRIDE) % _IDS])


def _spin(turns: int) -> None:
    """Bytecode and nothing else: the lock is let go only when somebody asks for it."""
    value = 0
    for turn in range(turns):
        value = (value + turn) & 0xFFFF


def _turn_s() -> float:
    """Processor seconds of one turn of `_spin`, whatever else runs: the best of several."""
    turns, best = 100_000, float("inf")
    for _ in range(20):
        begun = time.thread_time()
        _spin(turns)
        best = min(best, time.thread_time() - begun)
    return best / turns
