"""The server span of each generation request, and the context that its calls carry on.

Knows HTTP requests and the names of outrider/telemetry.py (GenAI conventions); does not know where
spans go, nor what was drafted: sums are in the verifiers' spans below this one. Nothing of a prompt
or an answer is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.bodies import ChatBody, CompletionBody, GenerationBody
from outrider import telemetry
from outrider.trace_context import TraceContext
from outrider.trace_settings import TraceSettings

if TYPE_CHECKING:
    from gateway.generation import Choice, Generation

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_SERVER_ERROR: Final = 500


class GatewayTracer:
    """Begins the spans of one gateway."""

    def __init__(self, tracer: Tracer, settings: TraceSettings) -> None:
        self._tracer = tracer
        self._settings = settings

    def begin(self, caller: TraceContext, operation: str, route: str) -> GatewayTrace:
        """The trace of a request that has just come; `caller` is its client's context.

        Also where the trace is not sampled: what is called for the request must know that.
        """
        span = self._tracer.start_span(
            operation,
            context=_PROPAGATOR.extract(caller.carrier()),
            kind=SpanKind.SERVER,
            attributes={
                telemetry.OPERATION: operation,
                telemetry.PROVIDER: telemetry.SCOPE,
                telemetry.HTTP_ROUTE: route,
            },
        )
        if self._settings.sample_ratio > 0:
            # At 0 only callers decide, and what share they take is not known here.
            span.set_attribute(telemetry.SAMPLING_RATIO, self._settings.sample_ratio)
        return GatewayTrace(span, operation)


class GatewayTrace:
    """One request's span.

    `context` is what its calls carry; `trace_id` is empty where it is not sampled.
    """

    def __init__(self, span: Span, operation: str) -> None:
        self._span = span
        self._operation = operation
        self._generation: Generation | None = None
        context = span.get_span_context()
        self.context = TraceContext(
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}",
            context.trace_state.to_header(),
        )
        self.trace_id = f"{context.trace_id:032x}" if span.is_recording() else ""

    def asked(self, body: GenerationBody, model: str, request_id: str, workload: str) -> None:
        """What the request turned out to ask for."""
        if not self._span.is_recording():
            return
        self._span.update_name(f"{self._operation} {model}")
        given: dict[str, AttributeValue | None] = {
            telemetry.REQUEST_MODEL: body.model or model,
            telemetry.RESPONSE_MODEL: model,
            telemetry.RESPONSE_ID: request_id,
            telemetry.CHOICE_COUNT: body.choices_per_prompt,
            telemetry.TEMPERATURE: body.temperature,
            telemetry.TOP_P: body.top_p,
            telemetry.TOP_K: body.top_k,
            telemetry.MAX_TOKENS: _max_tokens(body),
            telemetry.SEED: body.seed,
            telemetry.STREAM: body.stream or None,
            telemetry.WORKLOAD: workload or None,
        }
        self._span.set_attributes({k: v for k, v in given.items() if v is not None})

    def answering(self, generation: Generation) -> None:
        """What runs for the request."""
        self._generation = generation

    def end(self, status: int, error: str) -> None:
        """The request is over with this HTTP status; `error` is what ended a begun answer."""
        span = self._span
        if span.is_recording():
            span.set_attributes(self._outcome(status, error))
            if error or status >= _SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
        span.end()

    def _outcome(self, status: int, error: str) -> dict[str, AttributeValue]:
        outcome: dict[str, AttributeValue] = {telemetry.HTTP_STATUS: status}
        if error or status >= _SERVER_ERROR:
            outcome[telemetry.ERROR_TYPE] = error or str(status)
        if self._generation is not None:
            choices = self._generation.choices
            unfinished = "error" if telemetry.ERROR_TYPE in outcome else "abort"
            outcome[telemetry.INPUT_TOKENS] = sum(c.prompt_tokens for c in _prompts(choices))
            outcome[telemetry.OUTPUT_TOKENS] = sum(c.completion_tokens for c in choices)
            outcome[telemetry.FINISH_REASONS] = [c.finish_reason or unfinished for c in choices]
        return outcome


def _max_tokens(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody):
        return body.max_completion_tokens or body.max_tokens
    return body.max_tokens if isinstance(body, CompletionBody) else None


def _prompts(choices: list[Choice]) -> list[Choice]:
    """One choice of each prompt, as `usage` counts prompts."""
    return list({choice.call.prompt_index: choice for choice in reversed(choices)}.values())
