"""The verifier's core as its edge sees it: submit, abort, look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from verifier_service.explanation import Explanation
from verifier_service.messages import ModelInfo, OutputSink, Request
from verifier_service.step_times import StepHistograms


@dataclass(frozen=True, slots=True)
class CoreStats:
    """A moment's view of the core; `speculation_state` is `on` or `off: <reason>`."""

    running: int = 0
    waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    # Sums since start: prompt tokens looked for in the cache, those found, sequences preempted.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    speculation_state: str = "off: no proposer attached"
    # The numbers behind the state, as of a few steps ago.
    speculation: Explanation = field(default_factory=lambda: Explanation(state="off"))
    # Milliseconds of a verification step by number of query tokens, as measured.
    step_cost_ms: dict[int, float] = field(default_factory=dict)
    step_times: StepHistograms = field(default_factory=StepHistograms)
    # Seconds that the device has worked since start; None where the host does the work.
    device_busy_s: float | None = None


class QueueFullError(Exception):
    """The waiting queue is at its limit; the client may try again later."""


class EngineCore(Protocol):
    """Runs scheduler and engine on a thread or in a process of their own.

    All methods are thread-safe.
    """

    @property
    def model(self) -> ModelInfo: ...

    @property
    def failure(self) -> str:
        """Why the engine is dead, in words; empty while it lives."""

    def submit(self, request: Request, sink: OutputSink) -> None:
        """Queue a request. Its outputs arrive at `sink`, the last with a finish reason or error.

        Raises QueueFullError. The request is valid already (ids in range, fits the context).
        """

    def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds; no output follows. Unknown ids are ignored."""

    def stats(self) -> CoreStats: ...

    def shutdown(self) -> None:
        """Finish the current step, fail what is left, stop the thread. Idempotent."""


class CountingCore(EngineCore, Protocol):
    """A core of which another process can tell how many requests wait."""

    @property
    def taken(self) -> int:
        """Requests that have come to the scheduler since start, as of now.

        What was submitted and is not among them waits beside those that `stats` tells of.
        """
