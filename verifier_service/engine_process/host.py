"""A core that is spoken to over a channel: orders in, reports out.

Knows a core and the channel's messages; does not know how the core was built. Orders come on one
thread, outputs on the engine's, and a third sends: all outputs since its last message in one, which
is a step's as a rule.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from verifier_service.core import CountingCore, QueueFullError
from verifier_service.engine_process import wire
from verifier_service.engine_process.structures import StructureRoom
from verifier_service.grammar.vocabulary import Vocabulary
from verifier_service.messages import Output, OutputSink, Request
from verifier_service.proposer_state import ProposerState

_log = logging.getLogger(__name__)

# How often a moment is told while something changes, and looked for while nothing does.
MOMENT_S = 0.05
IDLE_S = 0.25
# What the engine's thread needs to hand a step's outputs out: a look in between would part them,
# and take Python from it.
_GATHER_S = 0.0003
_LAST_WORDS_S = 10.0

States = Callable[[], Sequence[ProposerState]]


class Reporter:
    """Sends outputs and moments from a thread of its own. `put` never waits."""

    def __init__(self, connection: Connection, core: CountingCore, states: States) -> None:
        self._connection = connection
        self._core = core
        self._states = states
        self._queue: deque[tuple[int, Output]] = deque()
        self._wake = threading.Event()
        self._woken = False
        self._looked = 0
        # Requests that were submitted and will never come to the scheduler.
        self._lost = 0
        self._losing = threading.Lock()
        self._closing = False
        self._told = self._moment()
        self._told_at = 0.0
        self._thread = threading.Thread(target=self._main, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin to send, after a message that the caller has sent itself."""
        self._thread.start()

    @property
    def told(self) -> wire.Moment:
        """The last moment."""
        return self._told

    @property
    def waiting(self) -> int:
        """Outputs that are not on their way yet."""
        return len(self._queue)

    def put(self, number: int, output: Output) -> None:
        """Send an output; the thread is woken once for all that follow."""
        self._queue.append((number, output))
        # Cleared before the queue is read, so an output that sees it set will be read.
        if not self._woken:
            self._woken = True
            self._wake.set()

    def lose(self, count: int) -> None:
        """So many more requests will never come to the scheduler."""
        with self._losing:
            self._lost += count

    def look(self, number: int) -> None:
        """Tell a moment at once."""
        self._looked = number
        self._wake.set()

    def close(self) -> None:
        """Send everything that is left; the core is quiet."""
        self._closing = True
        self._wake.set()
        self._thread.join(_LAST_WORDS_S)

    def _main(self) -> None:
        pause = MOMENT_S
        while True:
            self._wake.wait(pause)
            if self._queue:
                time.sleep(_GATHER_S)
            self._wake.clear()
            self._woken = False
            closing = self._closing
            report = self._report(closing)
            if report.outputs or report.moment is not None:
                try:
                    self._connection.send_bytes(wire.encode_report(report))
                except OSError as error:
                    # Whoever reads orders sees the end of the channel, too.
                    _log.debug("the verifier takes no outputs any more: %s", error)
                    return
                pause = MOMENT_S
            else:
                pause = IDLE_S
            if closing:
                return

    def _report(self, closing: bool) -> wire.Report:
        outputs = []
        while self._queue:
            outputs.append(self._queue.popleft())
        told = self._told
        due = time.monotonic() - self._told_at >= MOMENT_S
        # Read behind the outputs: a failed engine fails its requests after it says so.
        if not (due or closing or self._looked > told.looked or self._core.failure != told.failure):
            return wire.Report(outputs)
        moment = self._moment()
        if moment == told:
            return wire.Report(outputs)
        self._told, self._told_at = moment, time.monotonic()
        return wire.Report(outputs, moment)

    def _moment(self) -> wire.Moment:
        stats = self._core.stats()
        return wire.Moment(
            stats=stats,
            proposers=tuple(self._states()),
            failure=self._core.failure,
            taken=self._core.taken + self._lost,
            looked=self._looked,
        )


class Host:
    """Serves one core until it is told to end. Orders come from one thread."""

    def __init__(self, core: CountingCore, connection: Connection, states: States) -> None:
        self._core = core
        self._reporter = Reporter(connection, core, states)
        self._structures = StructureRoom(self._submit, self._refuse)
        self.ended = threading.Event()
        connection.send_bytes(wire.encode(wire.Ready(core.model, self._reporter.told)))
        self._reporter.start()

    def take(self, order: object) -> None:
        """Do what the edge asks for. Raises ValueError for what is no order."""
        match order:
            case wire.Submit(number, request) if request.structure is not None:
                self._structures.submit(number, request)
            case wire.Submit(number, request):
                self._submit(number, request)
            case wire.Abort(request_id):
                self._reporter.lose(self._structures.abort(request_id))
                self._core.abort(request_id)
            case wire.Look(number):
                self._reporter.look(number)
            case wire.Shutdown():
                self.ended.set()
            case Vocabulary():
                self._structures.learn(order)
            case _:
                raise ValueError(f"{type(order).__name__} is no order")

    def close(self) -> None:
        """Finish the current step, fail what is left, send it."""
        self._structures.close()
        self._core.shutdown()
        self._reporter.close()

    def _submit(self, number: int, request: Request) -> None:
        try:
            self._core.submit(request, self._sink(number))
        except (QueueFullError, RuntimeError) as error:
            self._refuse(number, Output(error=str(error)))

    def _refuse(self, number: int, output: Output) -> None:
        self._reporter.lose(1)
        self._reporter.put(number, output)

    def _sink(self, number: int) -> OutputSink:
        put = self._reporter.put

        def take(output: Output) -> None:
            put(number, output)

        return take
