"""Ended spans on their way out: a bounded queue, and batches that a receiver takes.

Knows the SDK's processor and exporter; does not know where spans go. A span with many events is as
heavy as many spans, so both are counted against the bounds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from outrider.otlp import Delivery

logger = logging.getLogger(__name__)

# A live page should be a second old, not five.
DELAY_MS: Final = 1000
MAX_SPANS: Final = 4096
# Spans and events in memory, about 1 KiB each.
MAX_QUEUED: Final = 65_536
# Spans and events in one message, and its bytes: below the 4 MiB that receivers take by default.
MAX_IN_MESSAGE: Final = 4096
MAX_MESSAGE_BYTES: Final = 3_500_000
_SPANS_IN_BATCH: Final = 256


class SpanQueue(BatchSpanProcessor):
    """Batches spans for `delivery`; what does not fit is dropped, counted, and logged once.

    `dropped` counts spans. The queue is the only place where telemetry waits: `delivery` may block.
    """

    def __init__(self, delivery: Delivery, *, delay_ms: int = DELAY_MS) -> None:
        self.dropped = 0
        # Spans in the queue, and these with their events.
        self._spans = 0
        self._waiting = 0
        self._count = threading.Lock()
        super().__init__(
            _Exporter(delivery, self._sent),
            max_queue_size=MAX_SPANS,
            schedule_delay_millis=delay_ms,
            max_export_batch_size=_SPANS_IN_BATCH,
        )

    def on_end(self, span: ReadableSpan) -> None:
        weight = _weight(span)
        with self._count:
            full = self._waiting + weight > MAX_QUEUED or self._spans >= MAX_SPANS
            if not full:
                self._waiting += weight
                self._spans += 1
            else:
                self.dropped += 1
                first = self.dropped == 1
        if not full:
            super().on_end(span)
        elif first:
            logger.warning(
                "telemetry waits for its receiver and %d spans are too many: further ones are "
                "dropped, and only counted",
                MAX_SPANS,
            )

    def _sent(self, spans: Sequence[ReadableSpan]) -> None:
        """These left the queue, whatever became of them."""
        with self._count:
            self._waiting -= sum(map(_weight, spans))
            self._spans -= len(spans)


class _Exporter(SpanExporter):
    def __init__(self, delivery: Delivery, sent: Callable[[Sequence[ReadableSpan]], None]) -> None:
        self._delivery = delivery
        self._sent = sent

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        complete = True
        for part in _parts(spans):
            try:
                complete &= self._send(part)
            finally:
                self._sent(part)
        return SpanExportResult.SUCCESS if complete else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._delivery.close()

    def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        message = encode_spans(spans)
        if len(spans) > 1 and message.ByteSize() > MAX_MESSAGE_BYTES:
            # Rounds with texts weigh more than was foreseen.
            half = len(spans) // 2
            parts = [self._send(spans[:half]), self._send(spans[half:])]
            return all(parts)
        return self._delivery.traces(message)


def _weight(span: ReadableSpan) -> int:
    return 1 + len(span.events)


def _parts(spans: Sequence[ReadableSpan]) -> Iterator[Sequence[ReadableSpan]]:
    """The spans in order, in messages of at most MAX_IN_MESSAGE, one span at least."""
    part: list[ReadableSpan] = []
    size = 0
    for span in spans:
        weight = _weight(span)
        if part and size + weight > MAX_IN_MESSAGE:
            yield part
            part, size = [], 0
        part.append(span)
        size += weight
    if part:
        yield part
