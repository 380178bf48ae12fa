"""From OTLP messages to records: what is checked, counted once, refused, and passed on.

Knows limits and reasons; does not know gRPC or where records are kept. Runs on the event loop and
gives way to requests between spans.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.evidence.attributes import ContentError
from gateway.evidence.counts import DUPLICATE, FLOOD, EvidenceCounts
from gateway.evidence.labels import LabelLimits
from gateway.evidence.records import RequestRecord
from gateway.evidence.reported import ReportedMetrics, data_points
from gateway.evidence.spans import is_request, parse_request

# A span weighs 1, each of its events as much, and so does a metric with each of its points; where
# the bytes are more than that, each kibibyte weighs 1. More than this a second, over what was saved
# up, is refused: reading it all would take the loop from requests.
RATE: Final = 20_000.0
BURST: Final = 200_000.0
MAX_REMEMBERED: Final = 100_000
# How much is read before requests have their turn.
_TURN: Final = 100
_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many items of a message were refused, and why the first one was."""

    rejected: int = 0
    message: str = ""


class Allowance:
    """What may come in: `rate` a second, saved up to `burst`."""

    def __init__(
        self,
        rate: float = RATE,
        burst: float = BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._at = clock()

    def take(self, weight: float) -> bool:
        """Whether so much may come in now; if so, it is gone from what is left."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if weight > self._left:
            return False
        self._left -= weight
        return True


class Intake:
    """Gives each request's record to `take`, once however often its span comes."""

    def __init__(
        self,
        counts: EvidenceCounts,
        take: Callable[[RequestRecord], None],
        *,
        reported: ReportedMetrics,
        labels: LabelLimits | None = None,
        allowance: Allowance | None = None,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        self._counts = counts
        self._take = take
        self._reported = reported
        self._labels = labels or LabelLimits()
        self._allowance = allowance or Allowance()
        self._max_remembered = max_remembered
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    @property
    def relabelled(self) -> int:
        """Records whose label was one too many and became `other`."""
        return self._labels.replaced

    async def traces(self, request: ExportTraceServiceRequest) -> Verdict:
        """Read every span; what is wrong with one harms no other."""
        self._counts.exported("traces")
        rejected, message, weight = 0, "", 0
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    weighs = _weight(span)
                    problem = await self._span(span, weighs)
                    if problem:
                        rejected += 1
                        message = message or problem
                    weight += weighs
                    if weight >= _TURN:
                        weight = 0
                        await asyncio.sleep(0)
        return Verdict(rejected, message)

    async def metrics(self, request: ExportMetricsServiceRequest) -> Verdict:
        """Keep every point's value; what is wrong with one harms no other."""
        self._counts.exported("metrics")
        reasons: list[str] = []
        points = _points(request)
        if not self._allowance.take(max(points, request.ByteSize() // _BYTES)):
            self._counts.dropped(FLOOD, points)
            return Verdict(points, "more metrics than are read in a second")
        for number, kept in enumerate(self._reported.add(request, reasons.append), 1):
            self._counts.points(int(kept))
            if number % _TURN == 0:
                await asyncio.sleep(0)
        for reason in reasons:
            self._counts.dropped(reason)
        return Verdict(len(reasons), f"wrong: {reasons[0]}" if reasons else "")

    async def _span(self, span: Span, weight: int) -> str:
        """Why it was refused; empty where it was not."""
        if not self._allowance.take(weight):
            self._counts.dropped(FLOOD)
            return "more spans than are read in a second"
        if not is_request(span):
            self._counts.received("other")
            return ""
        key = span.trace_id + span.span_id
        if key in self._seen:
            self._counts.dropped(DUPLICATE)
            return ""
        try:
            if weight > _TURN:
                # One with so many rounds takes as long as many requests' tokens.
                record = await asyncio.to_thread(parse_request, span, time.time_ns())
            else:
                record = parse_request(span, time.time_ns())
        except ContentError as error:
            self._counts.dropped(error.reason)
            return str(error)
        if key in self._seen:
            # The same came by another message meanwhile.
            self._counts.dropped(DUPLICATE)
            return ""
        self._seen[key] = None
        if len(self._seen) > self._max_remembered:
            self._seen.popitem(last=False)
        self._counts.received("request")
        self._take(self._labels.limited(record))
        return ""


def _weight(span: Span) -> int:
    return max(1 + len(span.events), span.ByteSize() // _BYTES)


def _points(request: ExportMetricsServiceRequest) -> int:
    """Points, and one for a metric without any."""
    return sum(
        max(1, len(data_points(metric)))
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )
