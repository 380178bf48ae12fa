"""Writes a verifier's rounds to a file beside the engine's thread.

Knows what of a step is recorded, a queue and a file's size; compares no drafts (comparing.py). The
engine's thread copies references into a queue and goes on; where the queue is full the step is
left out and counted, where the file is full recording ends.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from outrider.errors import InputError
from verifier_service.engines.base import Verdict
from verifier_service.simulation.comparing import Comparison, ObservedRound, ObservedStep
from verifier_service.simulation.recording import (
    Header,
    RecordedRound,
    RecordedStep,
    header_line,
    open_lines,
    step_line,
)
from verifier_service.step_plan import PREFILL, Planned, StepTimes

_log = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
_MOST_QUEUED = 4096
_JOIN_S = 10.0


class RoundRecorder:
    """One recording; `observe` belongs to the engine's thread.

    An older file of that name is replaced. `most_bytes` bounds the lines before compression.
    Raises InputError where the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, *, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._left = most_bytes
        self._file = _create(path)
        self._write(header_line(header))
        self._queue: queue.Queue[ObservedStep | None] = queue.Queue(_MOST_QUEUED)
        self._ended: list[int] = []
        self._dropped = 0
        self._full = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="recorder", daemon=True)
        self._thread.start()

    def observe(
        self,
        planned: Sequence[Planned],
        verdicts: Sequence[Verdict | None],
        asked: dict[int, int],
        times: StepTimes,
    ) -> None:
        """Take in a step before its verdicts are committed; `asked` drafts of each sequence."""
        if self._full.is_set():
            return
        step = RecordedStep(
            seconds=times.verify_ns * 1e-9,
            around=times.around_ns * 1e-9,
            waited=times.draft_wait_ns * 1e-9,
            rows=sum(len(part.chunk.ids) for part in planned),
            context=sum(part.chunk.start + len(part.chunk.ids) for part in planned),
            prefill=sum(len(part.chunk.ids) for part in planned if part.decision is PREFILL),
            rounds=(),
        )
        rounds = tuple(
            _observed(part, verdict, asked)
            for part, verdict in zip(planned, verdicts, strict=True)
            if verdict is not None and part.decision is not PREFILL
        )
        ended, self._ended = tuple(self._ended), []
        try:
            self._queue.put_nowait(ObservedStep(step, rounds, ended))
        except queue.Full:
            self._dropped += 1

    def end(self, sequence_id: int) -> None:
        """Say that a sequence has ended; belongs to the engine's thread too."""
        self._ended.append(sequence_id)

    def close(self) -> None:
        """Write what is left. Blocks for at most ten seconds. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join(_JOIN_S)
        if self._dropped:
            _log.warning(
                "%d steps are missing in %s: writing fell behind", self._dropped, self._path
            )

    def _main(self) -> None:
        comparison = Comparison()
        try:
            while (observed := self._queue.get()) is not None:
                for step in comparison.take(observed):
                    self._write(step_line(step))
            for step in comparison.flush():
                self._write(step_line(step))
        except OSError as error:
            _log.error("recording rounds in %s ended: %s", self._path, error)
        finally:
            self._full.set()
            self._drain()
            self._file.close()

    def _drain(self) -> None:
        """Let nobody wait for a place in the queue."""
        while not self._queue.empty():
            self._queue.get_nowait()

    def _write(self, line: str) -> None:
        if self._left <= 0:
            return
        self._left -= len(line)
        if self._left <= 0:
            self._full.set()
            _log.warning("the recording of rounds in %s is full; it ends here", self._path)
            return
        self._file.write(line)


def _observed(part: Planned, verdict: Verdict, asked: dict[int, int]) -> ObservedRound:
    sequence, decision = part.sequence, part.decision
    # What a stop condition cuts was not emitted.
    tokens, _, _ = sequence.cut(verdict.tokens)
    return ObservedRound(
        RecordedRound(
            sequence=sequence.sequence_id,
            position=len(sequence.ids),
            limit=sequence.most_drafts(),
            ask=asked.get(sequence.sequence_id, 0),
            greedy=sequence.greedy,
            emitted=len(tokens),
            verified=decision.drafted,
            accepted=verdict.accepted,
        ),
        part.offered,
        decision.block if decision.drafted else None,
        tuple(tokens),
    )


def _create(path: Path) -> IO[str]:
    try:
        return open_lines(path, "w")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"--record-rounds: cannot write {path}: {reason}") from error
