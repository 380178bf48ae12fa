"""An `EngineCore` whose engine runs in another process.

Knows numbers of requests and their sinks; does not know engines or schedulers. One thread reads
what the process tells and hands it out; another sends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from outrider.errors import InputError, OperationError
from verifier_service.attaching import Target
from verifier_service.core import CoreStats, QueueFullError
from verifier_service.engine_process import wire
from verifier_service.engine_process.outbox import Outbox
from verifier_service.engine_process.process import EngineProcess
from verifier_service.messages import ModelInfo, Output, OutputSink, Request
from verifier_service.proposer_state import ProposerState
from verifier_service.settings import VerifierSettings

_log = logging.getLogger(__name__)

BUILD_CORE = "verifier_service.build:build_core"
# As long as a core in this process may take to end, and a little for the process itself.
_SHUTDOWN_S = 35.0
_CLOSE_S = 1.0
# Where nothing came meanwhile, the process is not asked more often: nothing has changed.
_LOOK_AGAIN_S = 0.005
_LOOK_S = 0.1


class RemoteCore:
    """The core of one `EngineProcess`, which it ends. `max_waiting` as for a core in this process.

    `proposers` are those that the process drafts with.
    """

    def __init__(self, process: EngineProcess, ready: wire.Ready, *, max_waiting: int) -> None:
        self._process = process
        self._model = ready.model
        self._moment = ready.moment
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._submitted = 0
        self._looks = 0
        self._looked_at = 0.0
        # Whether something came since the process was last asked.
        self._moved = True
        self._sinks: dict[int, OutputSink] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._stopping = False
        self._failure = ""
        self._outbox = Outbox(process.connection, "engine-orders")
        self._reader = threading.Thread(target=self._read, name="engine-outputs", daemon=True)
        self._reader.start()

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def failure(self) -> str:
        return self._failure

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def submit(self, request: Request, sink: OutputSink) -> None:
        """See `EngineCore.submit`. RuntimeError when the engine is dead or shut down.

        Where the queue seems full, the process is asked whether it is: that takes less than a
        millisecond as a rule, at most 0.1 s.
        """
        if request.constraint is not None:
            raise ValueError(
                "a constraint cannot be sent to the engine's process, its structure can"
            )
        with self._changed:
            if self._waiting >= self._max_waiting and self._may_look():
                self._look()
            if self._failure or self._stopping:
                raise RuntimeError(self._failure or "the engine is shut down")
            if self._waiting >= self._max_waiting:
                raise QueueFullError(f"{self._max_waiting} requests are waiting: the queue is full")
            number = self._submitted + 1
            data = wire.encode(wire.Submit(number, request))
            self._submitted = number
            self._sinks[number] = sink
            # One that takes an id in use is told so by the scheduler, and is not the one to abort.
            self._numbers.setdefault(request.request_id, number)
            self._names[number] = request.request_id
            self._outbox.put(data)

    def abort(self, request_id: str) -> None:
        with self._changed:
            number = self._numbers.get(request_id)
            if number is not None:
                self._forget(number)
            self._outbox.put(wire.encode(wire.Abort(request_id)))

    def stats(self) -> CoreStats:
        """As of the last moment told: at most 50 ms ago while steps run."""
        return self._moment.stats

    def states(self) -> Sequence[ProposerState]:
        """The proposers, as of the last moment told."""
        return self._moment.proposers

    def send(self, message: object) -> None:
        """Tell the process something between two requests."""
        self._outbox.put(wire.encode(message))

    def shutdown(self) -> None:
        with self._changed:
            first, self._stopping = not self._stopping, True
        if first:
            self._outbox.put(wire.encode(wire.Shutdown()))
        self._reader.join(_SHUTDOWN_S)
        if self._reader.is_alive():
            _log.warning("the engine's process did not end in time; it is killed pid=%d", self.pid)
            self._process.kill()
            self._reader.join(_CLOSE_S)
        self._outbox.close(_CLOSE_S)
        self._process.close()

    @property
    def _waiting(self) -> int:
        return self._moment.stats.waiting + self._submitted - self._moment.taken

    def _may_look(self) -> bool:
        return self._moved or time.monotonic() - self._looked_at > _LOOK_AGAIN_S

    def _look(self) -> None:
        """Bring the moment up to date; the lock is let go meanwhile."""
        self._looks += 1
        number = self._looks
        self._moved = False
        self._outbox.put(wire.encode(wire.Look(number)))
        self._changed.wait_for(lambda: self._moment.looked >= number or self._stopping, _LOOK_S)
        self._looked_at = time.monotonic()

    def _read(self) -> None:
        connection = self._process.connection
        try:
            while True:
                report = wire.decode_report(connection.recv_bytes())
                # First, so that an output of a dead engine finds it dead.
                if report.moment is not None:
                    self._take(report.moment)
                self._moved = self._moved or bool(report.outputs)
                for number, output in report.outputs:
                    self._hand_out(number, output)
        except (EOFError, OSError):
            self._end(self._process.ended())
        except Exception as error:
            # Neither side can know any more who was told what.
            _log.exception("the engine's process says what cannot be read")
            self._process.kill()
            self._end(f"said what cannot be read: {type(error).__name__}: {error}")

    def _take(self, moment: wire.Moment) -> None:
        with self._changed:
            self._moment = moment
            if moment.failure and not self._stopping:
                self._failure = moment.failure
            self._changed.notify_all()

    def _hand_out(self, number: int, output: Output) -> None:
        sink = self._sinks.get(number)
        if sink is None:
            # Aborted; the process did not know yet.
            return
        if wire.is_last(output):
            with self._changed:
                self._forget(number)
        try:
            sink(output)
        except Exception:
            _log.exception("an output could not be handed out")

    def _forget(self, number: int) -> None:
        self._sinks.pop(number, None)
        name = self._names.pop(number, None)
        if name is not None and self._numbers.get(name) == number:
            del self._numbers[name]

    def _end(self, how: str) -> None:
        with self._changed:
            error = "the verifier is shutting down"
            if not self._stopping:
                self._failure = self._failure or f"the engine's process {how}"
                error = f"the engine failed: {self._failure}"
                _log.error("the engine's process %s", how)
            self._stopping = True
            sinks = list(self._sinks.values())
            self._sinks.clear()
            self._numbers.clear()
            self._names.clear()
            self._changed.notify_all()
        for sink in sinks:
            sink(Output(error=error))


def start_core(
    process: EngineProcess, settings: VerifierSettings, target: Target, build: str = ""
) -> RemoteCore:
    """Have the process load the model, and wait for it: seconds to minutes.

    `build` names what it calls, MODULE:FUNCTION; empty: `BUILD_CORE`.
    Raises InputError where it cannot be loaded as asked, OperationError where that fails or the
    process ends. The process has ended then.
    """
    connection = process.connection
    try:
        connection.send_bytes(wire.encode(wire.Start(settings, target, build or BUILD_CORE)))
        answer = wire.decode(connection.recv_bytes())
    except (EOFError, OSError):
        raise OperationError(f"the engine's process {process.ended()} while it loaded") from None
    if isinstance(answer, wire.Ready):
        return RemoteCore(process, answer, max_waiting=settings.max_waiting_requests)
    process.ended()
    process.close()
    kind = InputError if answer.refused else OperationError
    raise kind(answer.message)
