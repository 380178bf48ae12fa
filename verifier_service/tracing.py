"""One span a Generate call, with the sums of the very account that its answer ends with.

Knows requests, accounts and the names of outrider/telemetry.py; does not know where spans go. All
attributes are set once, at the end: a round costs a trace no more than its sums, and where rounds
are told, one entry of a list. Nothing of a prompt or an answer is told unless the settings'
`content` asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from speculation.v1 import verifier_pb2

from outrider import telemetry
from outrider.acceptance import Acceptance
from outrider.trace_context import TraceContext
from outrider.trace_settings import TraceSettings
from verifier_service.accounting import OUTCOME_ERROR, Account
from verifier_service.answer import Answer
from verifier_service.backend import Backend
from verifier_service.messages import PREDICTION, FinishReason, RejectionRule, Request
from verifier_service.request_error import RequestError
from verifier_service.request_sums import RequestSums, TracedRound

# Rounds told one by one; the sums are of all.
MAX_ROUNDS: Final = 4000

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_INTERNAL: Final = "INTERNAL"


class RequestTracer:
    """Begins the spans of one verifier: `instance_id`, serving `model`, verifying by `rule`."""

    def __init__(
        self,
        tracer: Tracer,
        settings: TraceSettings,
        *,
        instance_id: str,
        model: str,
        rule: RejectionRule,
    ) -> None:
        self.settings = settings
        self.instance_id = instance_id
        self.model = model
        self.rule = rule.value
        self._tracer = tracer

    def begin(
        self, request: verifier_pb2.GenerateRequest, context: TraceContext
    ) -> RequestTrace | None:
        """The request's trace, below its caller's; None where it is not sampled."""
        parent = _PROPAGATOR.extract(context.carrier())
        span = self._tracer.start_span(telemetry.REQUEST_SPAN, context=parent, kind=SpanKind.SERVER)
        return RequestTrace(self, span, request) if span.is_recording() else None


class RequestTrace:
    """One request's span, to be entered; it ends with the body.

    `traceparent` is what proposers are told.
    """

    def __init__(
        self, source: RequestTracer, span: Span, request: verifier_pb2.GenerateRequest
    ) -> None:
        self._source = source
        self._span = span
        self._asked = request
        self._request: Request | None = None
        self._account: Account | None = None
        self._answer: Answer | None = None
        self._backend: Backend | None = None
        context = span.get_span_context()
        self.traceparent = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        )

    @property
    def kept_rounds(self) -> int:
        """How many rounds the account keeps one by one."""
        return MAX_ROUNDS if self._source.settings.detailed else 0

    def admitted(
        self, request: Request, account: Account, answer: Answer, backend: Backend
    ) -> None:
        """What is running for the request from now on."""
        self._request, self._account = request, account
        self._answer, self._backend = answer, backend

    def __enter__(self) -> RequestTrace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        span = self._span
        span.set_attributes(self._asked_for())
        outcome = self._account.outcome if self._account is not None else ""
        if failed := _error_type(error, outcome):
            span.set_attribute(telemetry.ERROR_TYPE, failed)
            # Without a description: what a refusal quotes may be of the prompt.
            span.set_status(StatusCode.ERROR)
            outcome = OUTCOME_ERROR
        span.set_attribute(telemetry.FINISH_REASONS, (outcome or FinishReason.ABORT.value,))
        if self._account is not None and self._account.traced is not None:
            self._tell_sums(self._account, self._account.traced)
        span.end()

    def _asked_for(self) -> dict[str, AttributeValue]:
        source, asked, request = self._source, self._asked, self._request
        attributes: dict[str, AttributeValue] = {
            telemetry.OPERATION: "chat"
            if asked.WhichOneof("prompt") == "chat"
            else "text_completion",
            telemetry.PROVIDER: telemetry.SCOPE,
            telemetry.RESPONSE_ID: request.request_id if request else asked.request_id[:256],
            telemetry.VERIFIER: source.instance_id,
            telemetry.RULE: source.rule,
        }
        if source.settings.sample_ratio > 0:
            # At 0 only callers decide, and what share they take is not known here.
            attributes[telemetry.SAMPLING_RATIO] = source.settings.sample_ratio
        if request is not None:
            # What was refused may hold anything: only what was checked is told.
            if asked.model:
                attributes[telemetry.REQUEST_MODEL] = asked.model
            if asked.workload:
                attributes[telemetry.WORKLOAD] = asked.workload
            sampling = request.sampling
            attributes |= {
                telemetry.TEMPERATURE: sampling.temperature,
                telemetry.TOP_P: sampling.top_p,
                telemetry.TOP_K: sampling.top_k,
                telemetry.MAX_TOKENS: sampling.max_tokens,
                telemetry.SEED: sampling.seed,
                telemetry.FREQUENCY_PENALTY: sampling.frequency_penalty,
                telemetry.PRESENCE_PENALTY: sampling.presence_penalty,
            }
        return attributes

    def _tell_sums(self, account: Account, sums: RequestSums) -> None:
        assert self._answer is not None
        assert self._backend is not None
        beginning = self._answer.beginning
        off, by_proposer = sums.off_rounds, sums.by_proposer()
        self._span.set_attributes(
            {
                telemetry.RESPONSE_MODEL: self._source.model,
                telemetry.INPUT_TOKENS: account.prompt_tokens,
                telemetry.OUTPUT_TOKENS: account.completion_tokens,
                telemetry.CACHED_TOKENS: beginning.cached_prompt_tokens,
                telemetry.QUEUE_NS: beginning.queue_ns,
                telemetry.FIRST_TOKEN_NS: beginning.first_token_ns,
                telemetry.CEILING: account.acceptance.num_spec_tokens,
                telemetry.ROUNDS: sums.num_rounds,
                telemetry.LOOKAHEAD_HITS: sum(p.lookahead_hits for p in by_proposer.values()),
                telemetry.DRAFT_WAIT_NS: sums.draft_wait_ns,
                telemetry.VERIFY_NS: sums.verify_ns,
                telemetry.OFF_REASONS: list(off),
                telemetry.OFF_ROUNDS: list(off.values()),
                **_acceptance(account.acceptance),
            }
        )
        methods = _methods(self._backend) if by_proposer else {}
        for name, rounds in by_proposer.items():
            self._span.add_event(
                telemetry.PROPOSER_EVENT,
                {
                    telemetry.PROPOSER: name,
                    telemetry.METHOD: methods.get(name, ""),
                    telemetry.LOOKAHEAD_HITS: rounds.lookahead_hits,
                    **_acceptance(rounds.acceptance),
                },
            )
        for traced in sums.rounds:
            self._span.add_event(telemetry.ROUND_EVENT, self._round(traced), traced.at_ns)

    def _round(self, traced: TracedRound) -> dict[str, AttributeValue]:
        round_ = traced.round
        attributes: dict[str, AttributeValue] = {
            telemetry.ROUND_BASE: round_.base,
            telemetry.ROUND_OFFERED: round_.offered,
            telemetry.ROUND_VERIFIED: round_.drafted,
            telemetry.ROUND_ACCEPTED: round_.accepted,
            telemetry.ROUND_EMITTED: round_.emitted,
            telemetry.ROUND_LOOKAHEAD_HIT: round_.lookahead_hit,
            telemetry.DRAFT_WAIT_NS: round_.draft_wait_ns,
            telemetry.VERIFY_NS: round_.verify_ns,
            telemetry.RULE: self._source.rule,
        }
        if round_.proposer:
            attributes[telemetry.PROPOSER] = round_.proposer
        if round_.off_reason:
            attributes[telemetry.ROUND_OFF_REASON] = round_.off_reason
        if self._source.settings.content:
            attributes[telemetry.ROUND_DRAFT_TEXTS] = self._texts(round_.draft_token_ids)
            attributes[telemetry.ROUND_EMITTED_TEXTS] = self._texts(traced.token_ids)
        return attributes

    def _texts(self, token_ids: Sequence[int]) -> list[str]:
        assert self._backend is not None
        text = self._backend.text
        return [text.token_bytes(token_id).decode("utf-8", "replace") for token_id in token_ids]


def _acceptance(acceptance: Acceptance) -> dict[str, AttributeValue]:
    return {
        telemetry.STEPS: acceptance.num_spec_steps,
        telemetry.DRAFT_TOKENS: acceptance.num_draft_tokens,
        telemetry.ACCEPTED_TOKENS: acceptance.num_accepted_draft_tokens,
        telemetry.HISTOGRAM: acceptance.histogram,
        telemetry.ACCEPTED_PER_POSITION: acceptance.accepted_per_position,
        telemetry.PROPOSED_PER_POSITION: acceptance.proposed_per_position,
    }


def _methods(backend: Backend) -> Mapping[str, str]:
    """Each proposer's method by its name here."""
    states = (state.to_proto() for state in backend.proposers.states())
    return {PREDICTION: PREDICTION, **{state.name: state.method for state in states}}


def _error_type(error: BaseException | None, outcome: str) -> str:
    """The status that the client was told, or would have been; empty for no error.

    A client that leaves is none.
    """
    if isinstance(error, RequestError):
        return error.status.name
    if error is not None and not isinstance(error, asyncio.CancelledError):
        return _INTERNAL
    return _INTERNAL if outcome == OUTCOME_ERROR else ""
