"""How long the engine's steps took and waited for drafts, as histograms since start.

Knows seconds; knows no proposer, request or metric name. The engine's thread counts here; others
read the snapshots.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from speculation.v1 import types_pb2, verifier_pb2

from outrider.records import record

# From a small model on a GPU to a long prefill on a CPU; a bound's own value belongs to it.
BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


@record(frozen=True, slots=True)
class Histogram:
    """Counts [len(BOUNDS_S) + 1], the last one of what is above all bounds, and the sum in s."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    def to_proto(self) -> types_pb2.Histogram:
        return types_pb2.Histogram(upper_bounds=BOUNDS_S, counts=self.counts, sum=self.sum_s)


@record(frozen=True, slots=True)
class StepHistograms:
    """`draft_wait` of the steps that asked for drafts, and forward and sampling of all steps.

    `plain` steps decode without a draft, `verify` steps verify at least one; what also prefills
    counts as `prefill` alone, since prompts make it long.
    """

    draft_wait: Histogram = Histogram()
    plain: Histogram = Histogram()
    verify: Histogram = Histogram()
    prefill: Histogram = Histogram()

    def to_proto(self) -> verifier_pb2.StepTimes:
        return verifier_pb2.StepTimes(
            draft_wait=self.draft_wait.to_proto(),
            plain=self.plain.to_proto(),
            verify=self.verify.to_proto(),
            prefill=self.prefill.to_proto(),
        )


class _Counts:
    """One histogram that grows."""

    __slots__ = ("_counts", "_snapshot", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0
        self._snapshot: Histogram | None = None

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds
        self._snapshot = None

    @property
    def snapshot(self) -> Histogram:
        """As it is now; made when it is asked for first."""
        if self._snapshot is None:
            self._snapshot = Histogram(tuple(self._counts), self._sum_s)
        return self._snapshot


class StepTimesTotal:
    """The histograms of one engine since its start."""

    __slots__ = ("_draft_wait", "_plain", "_prefill", "_verify")

    def __init__(self) -> None:
        self._draft_wait = _Counts()
        self._plain = _Counts()
        self._verify = _Counts()
        self._prefill = _Counts()

    def observe(
        self, draft_wait_ns: int, verify_ns: int, *, drafted: bool, prefilled: bool
    ) -> None:
        """Take in one step; `draft_wait_ns` is 0 where it asked for no drafts."""
        if draft_wait_ns > 0:
            self._draft_wait.add(draft_wait_ns * 1e-9)
        decoding = self._verify if drafted else self._plain
        kind = self._prefill if prefilled else decoding
        kind.add(verify_ns * 1e-9)

    def snapshot(self) -> StepHistograms:
        return StepHistograms(
            self._draft_wait.snapshot,
            self._plain.snapshot,
            self._verify.snapshot,
            self._prefill.snapshot,
        )
