"""Stand-ins for parts of Outrider in other parts' tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from outrider.acceptance import Round
from verifier_service.core import CoreStats, QueueFullError
from verifier_service.messages import FinishReason, ModelInfo, Output, OutputSink, Request

Script = Callable[[Request], Iterable[Output]]


def rounds(
    token_ids: Iterable[int],
    *,
    per_round: int = 1,
    reason: FinishReason = FinishReason.LENGTH,
    stop_token_id: int | None = None,
    off_reason: str = "",
    cached: int = 0,
) -> list[Output]:
    """The ids in rounds of `per_round`, all but each round's last being accepted drafts."""
    ids = list(token_ids)
    outputs: list[Output] = []
    for base in range(0, len(ids), per_round):
        part = tuple(ids[base : base + per_round])
        last = base + per_round >= len(ids)
        drafted = len(part) - 1
        outputs.append(
            Output(
                token_ids=part,
                round=Round(
                    base=base,
                    offered=drafted,
                    drafted=drafted,
                    accepted=drafted,
                    emitted=len(part),
                    proposer="fake" if drafted else "",
                    off_reason="" if drafted else off_reason,
                ),
                finish_reason=reason if last else None,
                stop_token_id=stop_token_id if last else None,
                cached_prompt_tokens=cached,
                queue_ns=7,
            )
        )
    return outputs


@dataclass
class FakeCore:
    """An `EngineCore` that plays a script for each request, on a thread of its own.

    With `hold` set, outputs are emitted only as the test calls `step`. `submitted` and `aborted`
    say what was asked of it.
    """

    script: Script
    model_len: int = 512
    vocab_size: int = 400
    eos_token_ids: tuple[int, ...] = (1,)
    hold: bool = False
    full: bool = False
    failure: str = ""
    core_stats: CoreStats = field(default_factory=CoreStats)

    def __post_init__(self) -> None:
        self.submitted: list[Request] = []
        self.aborted: list[str] = []
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: list[tuple[str, OutputSink, list[Output]]] = []
        self._allowed = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ModelInfo:
        return ModelInfo(
            name="fake",
            vocab_size=self.vocab_size,
            max_model_len=self.model_len,
            eos_token_ids=self.eos_token_ids,
            engine="fake",
            device="cpu",
            dtype="float32",
        )

    def submit(self, request: Request, sink: OutputSink) -> None:
        if self.full:
            raise QueueFullError
        with self._wake:
            self.submitted.append(request)
            self._queue.append((request.request_id, sink, list(self.script(request))))
            self._wake.notify_all()

    def abort(self, request_id: str) -> None:
        with self._wake:
            self.aborted.append(request_id)
            self._queue = [entry for entry in self._queue if entry[0] != request_id]

    def stats(self) -> CoreStats:
        return self.core_stats

    def step(self, count: int = 1) -> None:
        """Allow `count` more rounds of all running requests."""
        with self._wake:
            self._allowed += count
            self._wake.notify_all()

    def die(self, reason: str) -> None:
        """Fail everything that runs, as an engine does whose device is gone."""
        with self._wake:
            self.failure = reason
            victims, self._queue = self._queue, []
        for _, sink, _ in victims:
            sink(Output(error=reason))

    def shutdown(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(5)
        self.stopped.set()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._may_go_on)
                if self._closing:
                    return
                if self.hold:
                    self._allowed -= 1
                due = [(sink, outputs.pop(0)) for _, sink, outputs in self._queue if outputs]
                self._queue = [entry for entry in self._queue if entry[2]]
            for sink, output in due:
                sink(output)

    def _may_go_on(self) -> bool:
        ready = bool(self._queue) and (not self.hold or self._allowed > 0)
        return self._closing or ready
