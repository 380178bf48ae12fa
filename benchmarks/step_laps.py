"""A verifier's loop around a target that takes no work, and what each part of a step takes.

Knows the loop's parts by name and a clock; runs no model and no proposer. The engine sleeps as long
as an 8B model on an H200 takes and answers with tokens that it draws; the source answers at once.
The controller is told these seconds and that asking was free, so that it decides the same however
busy the machine is.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from verifier_service.controller import Controller
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
from verifier_service.messages import (
    DraftBlock,
    Expected,
    Foreseen,
    ModelInfo,
    NoDrafts,
    Output,
    Request,
    Sampling,
    SequenceView,
)
from verifier_service.scheduler import Scheduler

# Seconds of a forward by its tokens, as an H200 took for an 8B-shaped model (gpu_engine.md).
FORWARD_S = {1: 4.8e-3, 5: 4.9e-3, 40: 5.2e-3, 160: 6.1e-3, 640: 11.8e-3}
_CONTEXT, _ATTENTION = 256, (1e-9, 1e-10)
_BLOCK_SIZE, _VOCABULARY = 256, 50_000
# Chance that a draft is right; share of the sequences that are offered drafts in a step.
_RIGHT, _OFFERED = 0.8, 1 / 3

# What is timed: the object of the loop, its methods, and the part that they count as.
PARTS = (
    ("scheduler", "admit", "admit"),
    ("scheduler", "views", "views"),
    ("controller", "begin", "views"),
    ("source", "foreseen", "source"),
    ("scheduler", "plan", "plan"),
    ("controller", "plan", "decide"),
    ("scheduler", "apply", "apply"),
    ("controller", "observe_round", "learn rounds"),
    ("controller", "observe_shadow", "learn rounds"),
    ("controller", "observe_step", "learn time"),
    ("controller", "observe_wait", "learn time"),
    ("controller", "observe_speed", "learn time"),
)
# The parts between two forwards as they are shown; what no part counts is the loop's own.
SHOWN = ("admit", "views", "plan", "decide", "apply", "learn rounds", "learn time", "loop")


@dataclass(frozen=True, slots=True)
class Load:
    """What runs: so many sequences, `drafts` the most for each of them in a step (0: none)."""

    sequences: int
    drafts: int
    temperature: float
    context: int = 256


@dataclass(slots=True)
class Laps:
    """Nanoseconds of each part since the last forward, nested parts counted once.

    `steps` has one entry for each interval between two forwards, with how many drafts the one
    before and the one behind it verified; `wanted` entries set `done`. What the host did while the
    one before worked is its `meanwhile`.
    """

    clock: Callable[[], int]
    wanted: int
    steps: list[tuple[int, int, dict[str, int]]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    _spent: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    # Nanoseconds of the parts inside each part that is running.
    _inner: list[int] = field(default_factory=list)
    _began: int = 0
    _ended: int = 0
    _hidden: int = 0
    _drafted: int = 0

    def time(self, owner: object, method: str, part: str) -> None:
        """Count what a method takes as `part` from now on."""
        call = getattr(owner, method)

        @wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0)
            began = self.clock()
            result = call(*arguments, **named)
            spent = self.clock() - began
            self._spent[part] += spent - self._inner.pop()
            if self._inner:
                self._inner[-1] += spent
            return result

        setattr(owner, method, timed)

    def forward_begins(self, drafted: int, *, counted: bool) -> None:
        """The host has done its part; `counted` unless it prefilled."""
        self._began = self.clock()
        between = self._began - self._ended
        spent, self._spent = dict(self._spent), defaultdict(int)
        if self._ended and counted:
            spent["loop"] = between - sum(spent.values())
            spent["meanwhile"] = self._hidden
            self.steps.append((self._drafted, drafted, spent))
            if len(self.steps) == self.wanted:
                self.done.set()
        self._drafted = drafted

    def forward_works(self) -> None:
        """The host has done what it does while the device works: none of it counts elsewhere."""
        self._hidden = self.clock() - self._began
        self._spent = defaultdict(int)

    def forward_ends(self) -> None:
        self._ended = self.clock()


class SleepingEngine:
    """An `Engine` whose forward sleeps, unless `awake`; drafts are right by chance.

    `seconds` is what its last forward stands for.
    """

    def __init__(self, laps: Laps, load: Load, seed: int, *, awake: bool) -> None:
        self.seconds = 0.0
        self._awake = awake
        blocks = 4 + (load.context + 4096) // _BLOCK_SIZE
        self._cache = CacheShape(load.sequences * blocks, _BLOCK_SIZE)
        self._costs = CostTable.from_profile(FORWARD_S, _CONTEXT, _ATTENTION)
        self._laps = laps
        self._rng = random.Random(seed)

    @property
    def model(self) -> ModelInfo:
        return ModelInfo("asleep", _VOCABULARY, 1 << 20, (), "asleep", "none", "none")

    @property
    def cache(self) -> CacheShape:
        return self._cache

    def run(
        self,
        chunks: list[Chunk],
        *,
        goes_on: GoesOn | None = None,
        sure: bool = False,
        joining: Joining = nobody,
        meanwhile: Meanwhile = no_more,
    ) -> list[Verdict | None]:
        rows = sum(len(chunk.ids) for chunk in chunks)
        drafted = sum(chunk.drafts for chunk in chunks)
        decoding = all(chunk.samples and len(chunk.ids) == chunk.drafts + 1 for chunk in chunks)
        self._laps.forward_begins(drafted, counted=decoding)
        meanwhile()
        self._laps.forward_works()
        verdicts = [self._verdict(chunk) for chunk in chunks]
        self.seconds = self._costs.seconds(rows, len(chunks)) * self._rng.lognormvariate(0.0, 0.02)
        if not self._awake:
            time.sleep(self.seconds)
        self._laps.forward_ends()
        return verdicts

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        return

    def device_busy_s(self) -> float | None:
        return None

    def _verdict(self, chunk: Chunk) -> Verdict | None:
        if not chunk.samples:
            return None
        accepted = 0
        while accepted < chunk.drafts and self._rng.random() < _RIGHT:
            accepted += 1
        kept = chunk.ids[len(chunk.ids) - chunk.drafts :][:accepted]
        return Verdict(accepted, [*kept, self._rng.randrange(_VOCABULARY)])


class CalmController(Controller):
    """A controller whose machine does nothing else: it hears of the engine's own seconds."""

    def __init__(self, engine: SleepingEngine, drafts: int) -> None:
        super().__init__(
            drafts,
            CostTable.from_profile(FORWARD_S, _CONTEXT, _ATTENTION),
            plain_share=None if drafts else 0.0,
        )
        self._engine = engine

    def observe_step(
        self,
        sequences: int,
        query_tokens: int,
        context_tokens: int,
        seconds: float,
        prefill_tokens: int = 0,
    ) -> None:
        super().observe_step(
            sequences, query_tokens, context_tokens, self._engine.seconds, prefill_tokens
        )

    def observe_wait(self, seconds: float) -> None:
        super().observe_wait(0.0)

    def observe_speed(self, sequences: int, tokens: int, seconds: float, *, drafted: bool) -> None:
        super().observe_speed(sequences, tokens, self._engine.seconds, drafted=drafted)


class ReadySource(NoDrafts):
    """A `DraftSource` that knows drafts for a third of the sequences before it is asked."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        # One sequence is offered drafts always: a third of the steps would tell little of it.
        share = _OFFERED if len(views) > 1 else 1.0
        return Foreseen(
            {
                view.sequence_id: [self._block(view)]
                for view in views
                if view.max_draft_tokens and self._rng.random() < share
            }
        )

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        return

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        return {}

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        return None

    def close(self) -> None:
        return

    def _block(self, view: SequenceView) -> DraftBlock:
        ids = tuple(self._rng.randrange(_VOCABULARY) for _ in range(view.max_draft_tokens))
        return DraftBlock("ngram", len(view.ids), ids, match_length=3)


def measure(
    load: Load, laps: Laps, *, seed: int = 1, awake: bool = False, timeout_s: float = 300.0
) -> None:
    """Run the loop until `laps` has what it wants. RuntimeError where it takes longer, or fails.

    `awake`: forwards take no time.
    """
    engine, source = SleepingEngine(laps, load, seed, awake=awake), ReadySource(seed)
    controller = CalmController(engine, load.drafts)
    scheduler = Scheduler(
        engine.cache,
        controller,
        num_speculative_tokens=load.drafts,
        max_num_seqs=load.sequences,
        max_num_batched_tokens=8192,
        max_waiting=load.sequences,
    )
    owners = {"scheduler": scheduler, "controller": controller, "source": source}
    for owner, method, part in PARTS:
        laps.time(owners[owner], method, part)
    speculative = load.drafts > 0
    core = Core(
        engine,
        scheduler,
        controller,
        source,
        max_waiting=load.sequences,
        speculative=speculative,
    )

    def sink(output: Output) -> None:
        if output.error:
            laps.done.set()

    rng = random.Random(seed)
    for number in range(load.sequences):
        prompt = [rng.randrange(_VOCABULARY) for _ in range(load.context)]
        sampling = Sampling(temperature=load.temperature, seed=number, max_tokens=1 << 20)
        core.submit(Request(f"request-{number}", prompt, sampling), sink)
    ended = laps.done.wait(timeout_s)
    failure = core.failure
    core.shutdown()
    if failure or not ended:
        raise RuntimeError(failure or f"the loop made no {laps.wanted} steps in {timeout_s:.0f} s")
