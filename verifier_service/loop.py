"""The core's thread: drafts, step, outputs, again. Knows no tensors and no text.

The thread never waits for the edge: sinks must not block. Between two forwards only what the next
one needs is done. Outputs are handed out once it has begun, and so are proposers told of them where
look-ahead has answered already; only where it has not, and a wait pays, does the step wait for
them. Where no draft is to be had the next step is begun before anything else is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from verifier_service.asking import AskingCost
from verifier_service.controller import Controller
from verifier_service.core import CoreStats, QueueFullError
from verifier_service.engines.base import Engine
from verifier_service.messages import (
    DraftSource,
    Foreseen,
    ModelInfo,
    Output,
    OutputSink,
    Request,
    SequenceView,
)
from verifier_service.next_step import NextStep
from verifier_service.scheduler import PREFILL, Scheduler, StepTimes
from verifier_service.speculation_watch import SpeculationWatch

_log = logging.getLogger(__name__)

_JOIN_S = 30.0
# Steps between two looks at the cost table for `stats`.
_COSTS_EVERY = 64
_NOTHING = Foreseen({})


class Core:
    """An `EngineCore`: one engine, one scheduler, one thread."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        controller: Controller,
        source: DraftSource,
        *,
        max_waiting: int,
        speculative: bool,
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._controller = controller
        controller.learns_later = True
        self._source = source
        self._max_waiting = max_waiting
        self._asking = AskingCost()
        # Each with whether it is an arrival, in the order in which they were asked for.
        self._commands: deque[tuple[bool, Callable[[], None]]] = deque()
        self._queued = 0
        self._taken = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._failure = ""
        self._watch = SpeculationWatch(controller if speculative else None, _log)
        self._steps = 0
        self._costs: dict[int, float] = {}
        self._stats = self._snapshot()
        self._pending: list[tuple[OutputSink, Output]] = []
        # When the last step ended, in ns; None after a time without work.
        self._ended: int | None = None
        # While a step runs nobody may leave: it holds their blocks.
        arrive = partial(self._run_commands, arrivals=True)
        self._next = NextStep(scheduler, controller, source, arrive)
        # When the device had its last work, in ns.
        self._launched = 0
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ModelInfo:
        return self._engine.model

    @property
    def failure(self) -> str:
        return self._failure

    @property
    def taken(self) -> int:
        """See `CountingCore.taken`."""
        return self._taken

    def submit(self, request: Request, sink: OutputSink) -> None:
        """See `EngineCore.submit`. RuntimeError when the engine is dead or shut down."""
        with self._wake:
            if self._failure or self._stopping:
                raise RuntimeError(self._failure or "the engine is shut down")
            if self._queued + self._stats.waiting >= self._max_waiting:
                raise QueueFullError(f"{self._max_waiting} requests are waiting: the queue is full")
            self._queued += 1
            self._commands.append((True, lambda: self._add(request, sink)))
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        with self._wake:
            self._commands.append((False, lambda: self._scheduler.abort(request_id)))
            self._wake.notify()

    def stats(self) -> CoreStats:
        return self._stats

    def shutdown(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _add(self, request: Request, sink: OutputSink) -> None:
        self._queued -= 1
        self._taken += 1
        try:
            self._scheduler.add(request, sink)
        except (QueueFullError, ValueError) as error:
            sink(Output(error=str(error)))

    def _main(self) -> None:
        try:
            while self._take_commands():
                self._step()
            error = "the verifier is shutting down"
        except Exception as failure:
            _log.exception("the engine failed")
            error = f"the engine failed: {type(failure).__name__}: {failure}"
        self._end(error)

    def _take_commands(self) -> bool:
        """Run what was asked for, sleeping while there is nothing to do; False to stop."""
        while True:
            with self._wake:
                if not self._commands and not self._scheduler.has_work and not self._stopping:
                    self._look_back()
                    self._flush()
                    self._tell_closed()
                    self._ended = None
                    self._next.rest()
                    self._wake.wait()
                if self._stopping:
                    return False
            self._run_commands()
            if self._scheduler.has_work:
                return True

    def _run_commands(self, *, arrivals: bool = False) -> None:
        """Do what was asked for; of `arrivals` alone those before which nothing else was."""
        while True:
            with self._wake:
                if not self._commands or (arrivals and not self._commands[0][0]):
                    return
                _, command = self._commands.popleft()
            command()

    def _step(self) -> None:
        scheduler, controller, following = self._scheduler, self._controller, self._next
        if not following.begun:
            # Beside rounds that were begun a prompt would need a forward of its own, and read all
            # weights again: it shares that of the next step.
            scheduler.admit()
        began = time.perf_counter_ns()
        prepared = self._source.looks_ahead
        controller.begin(
            scheduler.num_decoding,
            begun=following.begun,
            holding=following.take_holding(),
            unused=following.known,
            prepared=prepared,
        )
        views, closed = scheduler.views()
        asked = any(view.max_draft_tokens for view in views)
        foreseen = self._foreseen(views) if asked else _NOTHING
        waited = 0
        if foreseen is None or controller.waits_for(foreseen.unknown, prepared=prepared):
            self._source.send(views, closed)
            started = time.perf_counter_ns()
            blocks = self._source.collect()
            waited = time.perf_counter_ns() - started
            if foreseen is not None:
                controller.observe_waited(foreseen.unknown, waited * 1e-9)
            views, closed = [], []
        else:
            blocks = foreseen.without_waiting()
        asking = time.perf_counter_ns() - began
        planned = scheduler.plan(blocks, following.take_joined())
        copies = scheduler.take_copies()
        if copies:
            self._engine.copy_blocks(copies)
        if not planned:
            self._tell(views, closed)
            following.rest()
            return
        chunks = [part.chunk for part in planned]
        # What is done before a step that was begun already costs nothing: the device works.
        came = following.take()
        hidden = came.begun is not None
        started = time.perf_counter_ns()
        before = 0 if hidden else started - began
        drafting = asked or bool(views)
        if not prepared and controller.may_ask:
            drafting = drafting or any(part.sequence.ask_limit > 0 for part in planned)
        unused = following.known if hidden else len(blocks)
        sure = following.is_sure(planned, unused, drafting=drafting)
        verdicts = self._engine.run(
            chunks,
            goes_on=following.goes_on(planned, unused, drafting=drafting, blindly=sure),
            sure=sure,
            joining=following.joining(planned, self._engine.copy_blocks),
            meanwhile=partial(self._tell, views, closed),
        )
        ran = time.perf_counter_ns()
        spent = ran - (started if came.begun is None else came.begun)
        prefilled = sum(len(p.chunk.ids) for p in planned if p.decision is PREFILL)
        controller.observe_step(
            len(chunks),
            sum(len(chunk.ids) for chunk in chunks),
            sum(chunk.start + len(chunk.ids) for chunk in chunks),
            # What every step costs besides the forward belongs to the price of a token, too.
            spent * 1e-9 + self._asking.around(len(chunks)),
            prefill_tokens=prefilled,
        )
        times = StepTimes(waited, spent, before)
        self._pending.extend(scheduler.apply(planned, verdicts, times))
        ended = time.perf_counter_ns()
        around = (before + (0 if following.begun else ended - ran)) * 1e-9
        if hidden:
            around = 0.0 if came.blindly else controller.look_cost(len(chunks))
        elif came.read is not None:
            # All that the device stood still, reading and launching included. Of a step that reads
            # prompts launching may go on for long while it works already.
            stood = (started if prefilled else self._launched) - came.read
            around = stood * 1e-9
            if asked and not waited:
                controller.observe_held(len(blocks), len(chunks), around)
        if asked:
            known = 0.0 if hidden else asking * 1e-9
            controller.observe_wait(self._asking.of(len(chunks), around, known))
        elif not prefilled:
            self._asking.observe_plain(len(chunks), around)
        if following.begun:
            read = following.looked_at
            controller.observe_begun(None if read is None else (ran - read) * 1e-9)
        seconds = (ended - (self._ended or began)) * 1e-9
        # Requests that want no drafts say nothing of what drafts gain.
        if not prefilled and any(part.sequence.draft_limit > 0 for part in planned):
            tokens = sum(len(verdict.tokens) for verdict in verdicts if verdict is not None)
            drafted = any(chunk.drafts for chunk in chunks)
            controller.observe_speed(len(chunks), tokens, seconds, drafted=drafted)
        self._ended = ended

    def _foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        """What is known of the answers to these views; None where somebody must be asked."""
        # A step that was begun is plain, whatever anybody would answer.
        return _NOTHING if self._next.begun else self._source.foreseen(views)

    def _tell(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        """Tell proposers what they need not answer, learn, and hand out what was emitted.

        They prepare for what comes next: the sooner the better.
        """
        self._launched = time.perf_counter_ns()
        self._source.listen()
        if views or closed:
            self._source.send(views, closed)
            self._source.collect(wait=False)
        # Who is told of an answer may ask how things are behind it.
        self._look_back()
        self._flush()

    def _look_back(self) -> None:
        """Learn from the step before, and say how things are."""
        self._controller.learn()
        self._stats = self._snapshot()
        self._watch.observe(self._stats.speculation_state)

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        for sink, output in pending:
            sink(output)

    def _tell_closed(self) -> None:
        views, closed = self._scheduler.views()
        if views or closed:
            self._source.send(views, closed)

    def _snapshot(self) -> CoreStats:
        if self._steps % _COSTS_EVERY == 0:
            self._costs = self._controller.costs.milliseconds()
        self._steps += 1
        return CoreStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            kv_blocks_total=self._engine.cache.num_blocks,
            kv_blocks_free=self._scheduler.num_free_blocks,
            prefix_cache_queries=self._scheduler.prefix_cache_queries,
            prefix_cache_hits=self._scheduler.prefix_cache_hits,
            preemptions=self._scheduler.num_preemptions,
            speculation_state=self._watch.state(),
            speculation=self._watch.explanation,
            step_cost_ms=self._costs,
            step_times=self._scheduler.step_times.snapshot(),
            device_busy_s=self._engine.device_busy_s(),
        )

    def _end(self, error: str) -> None:
        """Fail what is left and let go of everything."""
        with self._wake:
            if not self._stopping:
                self._failure = error
            self._stopping = True
            commands, self._commands = self._commands, deque()
        self._flush()
        for _, command in commands:
            command()
        for sink in self._scheduler.end_all():
            sink(Output(error=error))
        self._stats = self._snapshot()
        self._source.close()
        self._engine.close()
