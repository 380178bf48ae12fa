"""What was received and what was not kept, by reason: for Prometheus and for JSON.

Knows names and labels; does not know why a span is refused.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry

# Of `dropped`; a reason is one of these words, or that of a ContentError.
UNDECODABLE: Final = "undecodable"
FLOOD: Final = "flood"
DUPLICATE: Final = "duplicate"
BUSY: Final = "busy"
UNREAD: Final = "unread"


class EvidenceCounts:
    """Counts since the start; may be used on any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()
        self._exports = prometheus_client.Counter(
            "outrider:evidence_exports",
            "OTLP messages received: traces or metrics.",
            ["signal"],
            registry=registry,
        )
        self._spans = prometheus_client.Counter(
            "outrider:evidence_spans",
            "Spans received and understood: of requests, or others, which are only passed on.",
            ["kind"],
            registry=registry,
        )
        self._points = prometheus_client.Counter(
            "outrider:evidence_metric_points",
            "Points of OTLP metrics received and understood.",
            registry=registry,
        )
        self._drops = prometheus_client.Counter(
            "outrider:evidence_dropped",
            "Spans, points and messages that were not kept, by reason.",
            ["reason"],
            registry=registry,
        )
        self._stored = prometheus_client.Counter(
            "outrider:evidence_stored_requests",
            "Requests written to the evidence file.",
            registry=registry,
        )
        self._forwarded = prometheus_client.Counter(
            "outrider:evidence_forwarded",
            "OTLP messages that the upstream collector took.",
            registry=registry,
        )
        self._forward_drops = prometheus_client.Counter(
            "outrider:evidence_forward_dropped",
            "OTLP messages that it never got: the queue was full, or it refused them.",
            ["reason"],
            registry=registry,
        )

    def exported(self, signal: str) -> None:
        self._exports.labels(signal).inc()

    def received(self, kind: str, count: int = 1) -> None:
        self._spans.labels(kind).inc(count)

    def points(self, count: int) -> None:
        self._points.inc(count)

    def dropped(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self._dropped[reason] += count
        self._drops.labels(reason).inc(count)

    def stored(self, count: int) -> None:
        self._stored.inc(count)

    def forwarded(self) -> None:
        self._forwarded.inc()

    def forward_dropped(self, reason: str) -> None:
        self._forward_drops.labels(reason).inc()

    def dropped_by_reason(self) -> dict[str, int]:
        """What was not kept since the start, duplicates aside: those were kept before."""
        with self._lock:
            return {reason: n for reason, n in sorted(self._dropped.items()) if reason != DUPLICATE}
