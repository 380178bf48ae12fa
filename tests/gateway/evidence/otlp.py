"""OTLP messages and records made by hand, for tests of evidence."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from gateway.evidence.records import ProposerShare, RequestRecord, RoundRecord
from gateway.evidence.sums import AcceptanceSums, Tally
from outrider import telemetry as names
from outrider.acceptance import Acceptance, Round

_ids = itertools.count(1)
SECOND = 10**9
K = 4


def any_value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=map(any_value, value)))


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(v)) for key, v in attributes.items()]


def sums_of(steps: Sequence[tuple[int, int]], k: int = K) -> AcceptanceSums:
    """The sums of steps of (drafted, accepted), by the definitions themselves."""
    acceptance = Acceptance(k)
    for drafted, accepted in steps:
        acceptance.add(
            Round(0, offered=drafted, drafted=drafted, accepted=accepted, emitted=accepted + 1)
        )
    return AcceptanceSums(
        acceptance.num_spec_steps,
        acceptance.num_draft_tokens,
        acceptance.num_accepted_draft_tokens,
        tuple(acceptance.histogram),
        tuple(acceptance.accepted_per_position),
        tuple(acceptance.proposed_per_position),
    )


def record(
    steps: Mapping[str, Sequence[tuple[int, int]]] | None = None, **changes: Any
) -> RequestRecord:
    """A request whose proposers (by name; the method is the name up to a dash) made these steps."""
    number = next(_ids)
    shares = tuple(
        ProposerShare(name, name.partition("-")[0], sums_of(parts))
        for name, parts in (steps or {}).items()
    )
    whole = Tally(histogram=[0] * (K + 1), accepted_per_position=[0] * K)
    whole.proposed_per_position = [0] * K
    for share in shares:
        whole.add(share.sums, 0, 0)
    now = time.time_ns()
    base = RequestRecord(
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        request_id=f"request-{number}",
        started_ns=now - SECOND,
        ended_ns=now,
        model="toy",
        verifier="v1",
        temperature=0.0,
        rule="coupled",
        num_speculative_tokens=K,
        prompt_tokens=5,
        completion_tokens=7,
        finish_reason="stop",
        num_rounds=3,
        sums=whole.frozen(),
        draft_wait_ns=11,
        verify_ns=22,
        queue_ns=33,
        first_token_ns=44,
        lookahead_hits=1,
        off=(("prefill", 1),),
        proposers=shares,
    )
    return replace(base, **changes)


def random_record(rng: random.Random, **changes: Any) -> RequestRecord:
    """Any request that a verifier could tell of."""
    proposers = rng.sample(["ngram", "ngram-2", "suffix", "prediction"], rng.randrange(4))
    steps = {
        name: [
            (drafted, rng.randint(0, drafted))
            for drafted in (rng.randint(1, K) for _ in range(rng.randint(1, 5)))
        ]
        for name in proposers
    }
    values: dict[str, Any] = {
        "model": rng.choice(["a", "b"]),
        "verifier": rng.choice(["v1", "v2"]),
        "workload": rng.choice(["", "chat", "it's; code"]),
        "temperature": rng.choice([None, 0.0, 0.3, 1.0, 1.5]),
        "completion_tokens": rng.randrange(100),
    }
    return record(steps, **{**values, **changes})


def request_span(record_: RequestRecord, **changes: Any) -> Span:
    """The `speculation.request` span that tells of `record_`; `changes` replace attributes.

    None as a change leaves the attribute out.
    """
    attributes: dict[str, Any] = {
        names.RESPONSE_ID: record_.request_id,
        names.RESPONSE_MODEL: record_.model,
        names.VERIFIER: record_.verifier,
        names.WORKLOAD: record_.workload or None,
        names.TEMPERATURE: record_.temperature,
        names.RULE: record_.rule,
        names.CEILING: record_.num_speculative_tokens,
        names.INPUT_TOKENS: record_.prompt_tokens,
        names.OUTPUT_TOKENS: record_.completion_tokens,
        names.FINISH_REASONS: [record_.finish_reason] if record_.finish_reason else None,
        names.ERROR_TYPE: record_.error or None,
        names.ROUNDS: record_.num_rounds,
        names.DRAFT_WAIT_NS: record_.draft_wait_ns,
        names.VERIFY_NS: record_.verify_ns,
        names.QUEUE_NS: record_.queue_ns,
        names.FIRST_TOKEN_NS: record_.first_token_ns,
        names.LOOKAHEAD_HITS: record_.lookahead_hits,
        names.OFF_REASONS: [reason for reason, _ in record_.off],
        names.OFF_ROUNDS: [count for _, count in record_.off],
        names.SAMPLING_RATIO: record_.sampling_ratio,
        **_sums(record_.sums),
        **changes,
    }
    return Span(
        trace_id=bytes.fromhex(record_.trace_id),
        span_id=bytes.fromhex(record_.span_id),
        name=names.REQUEST_SPAN,
        start_time_unix_nano=record_.started_ns,
        end_time_unix_nano=record_.ended_ns,
        attributes=pairs({k: v for k, v in attributes.items() if v is not None}),
        events=[*map(proposer_event, record_.proposers), *map(round_event, record_.rounds)],
        status=Status(code=Status.STATUS_CODE_ERROR) if record_.error else Status(),
    )


def proposer_event(share: ProposerShare) -> Span.Event:
    attributes = {
        names.PROPOSER: share.name,
        names.METHOD: share.method,
        names.LOOKAHEAD_HITS: share.lookahead_hits,
        **_sums(share.sums),
    }
    return Span.Event(name=names.PROPOSER_EVENT, attributes=pairs(attributes))


def round_event(round_: RoundRecord) -> Span.Event:
    attributes = {
        names.ROUND_BASE: round_.base,
        names.ROUND_OFFERED: round_.offered,
        names.ROUND_VERIFIED: round_.verified,
        names.ROUND_ACCEPTED: round_.accepted,
        names.ROUND_EMITTED: round_.emitted,
        names.ROUND_LOOKAHEAD_HIT: round_.lookahead_hit,
        names.PROPOSER: round_.proposer,
        names.ROUND_OFF_REASON: round_.off_reason,
        names.DRAFT_WAIT_NS: round_.draft_wait_ns,
        names.VERIFY_NS: round_.verify_ns,
        names.ROUND_DRAFT_TEXTS: round_.draft_texts,
        names.ROUND_EMITTED_TEXTS: round_.emitted_texts,
    }
    kept = {k: v for k, v in attributes.items() if v is not None}
    return Span.Event(name=names.ROUND_EVENT, attributes=pairs(kept))


def export_of(spans: Iterable[Span]) -> ExportTraceServiceRequest:
    resource = Resource(attributes=pairs({"service.name": names.VERIFIER_SERVICE}))
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=list(spans))])
        ]
    )


def metrics_of(
    values: Mapping[str, float], instance: str = "v1", attributes: Mapping[str, Any] | None = None
) -> ExportMetricsServiceRequest:
    def point(value: float) -> NumberDataPoint:
        if isinstance(value, int):
            return NumberDataPoint(as_int=value, attributes=pairs(attributes or {}))
        return NumberDataPoint(as_double=value, attributes=pairs(attributes or {}))

    metrics = [
        Metric(name=name, sum=Sum(data_points=[point(value)])) for name, value in values.items()
    ]
    return ExportMetricsServiceRequest(
        resource_metrics=[
            ResourceMetrics(
                resource=Resource(attributes=pairs({"service.instance.id": instance})),
                scope_metrics=[ScopeMetrics(metrics=metrics)],
            )
        ]
    )


def _sums(sums: AcceptanceSums) -> dict[str, Any]:
    return {
        names.STEPS: sums.num_spec_steps,
        names.DRAFT_TOKENS: sums.num_draft_tokens,
        names.ACCEPTED_TOKENS: sums.num_accepted_draft_tokens,
        names.HISTOGRAM: sums.histogram,
        names.ACCEPTED_PER_POSITION: sums.accepted_per_position,
        names.PROPOSED_PER_POSITION: sums.proposed_per_position,
    }
