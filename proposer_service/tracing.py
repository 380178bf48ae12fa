"""One span a traced sequence: what this proposer offered between its open and its close.

Knows the names of outrider/telemetry.py; does not know where spans go, nor what became of drafts,
which only the verifier knows. A sequence that is not traced at the verifier is not traced here.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outrider import telemetry
from outrider.trace_context import TRACEPARENT, read_context

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class SequenceTracer:
    """Begins the spans of one proposer, `name` of `method`."""

    def __init__(self, tracer: Tracer, name: str, method: str) -> None:
        self._tracer = tracer
        self._name = name
        self._method = method

    def begin(self, traceparent: str, verifier: str) -> SequenceTrace | None:
        """The trace of a sequence that `verifier` opens; None where its request is not traced."""
        context = read_context([(TRACEPARENT, traceparent)])
        if not context.sampled:
            return None
        span = self._tracer.start_span(
            telemetry.PROPOSE_SPAN,
            context=_PROPAGATOR.extract(context.carrier()),
            kind=SpanKind.SERVER,
            attributes={
                telemetry.PROPOSER: self._name,
                telemetry.METHOD: self._method,
                telemetry.VERIFIER: verifier,
            },
        )
        return SequenceTrace(span)


class SequenceTrace:
    """Counts of one open sequence; `end` tells them, once."""

    __slots__ = ("_blocks", "_draft_ns", "_draft_tokens", "_span", "_steps")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._steps = 0
        self._blocks = 0
        self._draft_tokens = 0
        self._draft_ns = 0

    def drafted(self, tokens: int, elapsed_ns: int) -> None:
        """A step wanted drafts and got `tokens` of them, perhaps none."""
        self._steps += 1
        self._blocks += tokens > 0
        self._draft_tokens += tokens
        self._draft_ns += elapsed_ns

    def end(self) -> None:
        """The sequence is closed, or forgotten."""
        self._span.set_attributes(
            {
                telemetry.STEPS: self._steps,
                telemetry.DRAFT_TOKENS: self._draft_tokens,
                telemetry.PROPOSE_BLOCKS: self._blocks,
                telemetry.PROPOSE_DRAFT_NS: self._draft_ns,
            }
        )
        self._span.end()
