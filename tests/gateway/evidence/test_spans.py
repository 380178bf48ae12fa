"""A span becomes a record exactly as it says, or is refused with a reason."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.evidence import spans
from gateway.evidence.attributes import MAX_COUNT, MAX_LIST, ContentError
from gateway.evidence.records import UNKNOWN, ProposerShare, RoundRecord
from gateway.evidence.spans import is_request, parse_request
from gateway.evidence.sums import AcceptanceSums
from outrider import telemetry as names
from tests.gateway.evidence.otlp import pairs, record, request_span, round_event, sums_of

ROUNDS = (
    RoundRecord(base=0, offered=0, verified=0, accepted=0, emitted=1, off_reason="prefill"),
    RoundRecord(
        base=1,
        offered=4,
        verified=3,
        accepted=2,
        emitted=3,
        proposer="ngram",
        draft_wait_ns=5,
        verify_ns=6,
        lookahead_hit=True,
        draft_texts=("a", "\x00", "🙂"),
        emitted_texts=("a", "b", "c"),
    ),
)


def parse(span: Span) -> Any:
    return parse_request(span, time.time_ns())


def refused(span: Span) -> str:
    with pytest.raises(ContentError) as caught:
        parse(span)
    return caught.value.reason


def test_everything_that_a_span_says_is_in_the_record() -> None:
    told = record(
        {"ngram": [(3, 2), (4, 4)], "suffix": [(1, 0)]},
        workload="code",
        temperature=0.7,
        rounds=ROUNDS,
        sampling_ratio=0.5,
    )
    assert parse(request_span(told)) == told


def test_a_failed_request_has_its_error() -> None:
    told = record({}, error="INTERNAL", finish_reason="error")
    assert parse(request_span(told)).error == "INTERNAL"


def test_a_request_that_never_began_has_no_sums() -> None:
    left: dict[str, Any] = {
        **dict.fromkeys((names.STEPS, names.DRAFT_TOKENS, names.ACCEPTED_TOKENS)),
        **dict.fromkeys((names.HISTOGRAM, names.ACCEPTED_PER_POSITION)),
        **dict.fromkeys((names.PROPOSED_PER_POSITION, names.OUTPUT_TOKENS)),
    }
    parsed = parse(request_span(record({}), **left))
    assert parsed.sums == AcceptanceSums()
    assert parsed.completion_tokens == 0


def test_the_model_asked_for_stands_in_for_the_one_that_answered() -> None:
    span = request_span(record({}), **{names.RESPONSE_MODEL: None, names.REQUEST_MODEL: "asked"})
    assert parse(span).model == "asked"


def test_a_span_without_an_id_is_called_by_its_own() -> None:
    told = record({})
    assert parse(request_span(told, **{names.RESPONSE_ID: None})).request_id == told.span_id


def test_steps_that_no_proposer_claims_are_told_as_unknown() -> None:
    told = record({"ngram": [(2, 1)], "suffix": [(3, 3)]})
    span = request_span(told)
    del span.events[1]
    shares = parse(span).proposers
    assert [share.name for share in shares] == ["ngram", UNKNOWN]
    assert shares[1].sums == told.proposers[1].sums


def test_only_request_spans_are_requests() -> None:
    assert is_request(Span(name=names.REQUEST_SPAN))
    assert not is_request(Span(name=names.PROPOSE_SPAN))
    assert not is_request(Span(name="chat toy"))


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("missing", {names.STEPS: None}),
    ("missing", {names.OUTPUT_TOKENS: None}),
    ("type", {names.STEPS: "2"}),
    ("type", {names.STEPS: 2.0}),
    ("type", {names.STEPS: True}),
    ("type", {names.HISTOGRAM: 3}),
    ("type", {names.HISTOGRAM: ["0", "1"]}),
    ("type", {names.RULE: 3}),
    ("type", {names.FINISH_REASONS: "stop"}),
    ("type", {names.TEMPERATURE: "hot"}),
    ("range", {names.DRAFT_TOKENS: -1}),
    ("range", {names.INPUT_TOKENS: MAX_COUNT + 1}),
    ("range", {names.TEMPERATURE: float("nan")}),
    ("range", {names.TEMPERATURE: float("inf")}),
    ("range", {names.TEMPERATURE: -0.5}),
    ("range", {names.SAMPLING_RATIO: 0.0}),
    ("range", {names.SAMPLING_RATIO: 1.5}),
    ("range", {names.HISTOGRAM: [0, -1, 3, 0, 0]}),
    ("size", {names.HISTOGRAM: [0] * (MAX_LIST + 1)}),
    ("sums", {names.ACCEPTED_TOKENS: 99}),
    ("sums", {names.ACCEPTED_TOKENS: 5}),
    ("sums", {names.STEPS: 1}),
    ("sums", {names.STEPS: 100}),
    ("sums", {names.DRAFT_TOKENS: 6}),
    ("sums", {names.HISTOGRAM: None}),
    ("sums", {names.HISTOGRAM: [1, 0, 0, 0, 1]}),
    ("sums", {names.ACCEPTED_PER_POSITION: [4, 2, 0, 0]}),
    ("sums", {names.ACCEPTED_PER_POSITION: [2, 1, 1, 2]}),
    ("sums", {names.PROPOSED_PER_POSITION: [1, 2, 2, 2]}),
    ("sums", {names.PROPOSED_PER_POSITION: [7, 0, 0, 0]}),
    ("off", {names.OFF_ROUNDS: [1, 2]}),
]


@pytest.mark.parametrize(("reason", "changes"), WRONG)
def test_what_cannot_be_so_is_refused(reason: str, changes: dict[str, Any]) -> None:
    told = record({"ngram": [(3, 2), (4, 4)]})
    assert refused(request_span(told, **changes)) == reason


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("identity", {"trace_id": b""}),
        ("identity", {"trace_id": bytes(16)}),
        ("identity", {"trace_id": b"1" * 15}),
        ("identity", {"span_id": bytes(8)}),
        ("identity", {"span_id": b"1" * 9}),
        ("times", {"start_time_unix_nano": 0}),
        ("times", {"end_time_unix_nano": 1}),
        ("times", {"end_time_unix_nano": 2**63 - 1}),
    ],
)
def test_a_span_needs_an_identity_and_times(reason: str, changes: dict[str, Any]) -> None:
    span = request_span(record({}))
    for name, value in changes.items():
        setattr(span, name, value)
    assert refused(span) == reason


def test_proposers_have_no_more_than_the_request() -> None:
    told = record({"ngram": [(3, 2)]})
    more = ProposerShare("suffix", "suffix", sums_of([(2, 2)]))
    span = request_span(record({"ngram": [(3, 2)]}, proposers=(*told.proposers, more)))
    assert refused(span) == "proposers"


def test_a_proposer_has_one_event() -> None:
    span = request_span(record({"ngram": [(3, 2)]}))
    span.events.append(span.events[0])
    assert refused(span) == "proposers"


@pytest.mark.parametrize(("verified", "accepted", "emitted"), [(1, 2, 3), (3, 2, 1)])
def test_a_round_accepts_what_it_verified_and_emits_it(
    verified: int, accepted: int, emitted: int
) -> None:
    span = request_span(record({}))
    span.events.append(round_event(RoundRecord(0, 3, verified, accepted, emitted)))
    assert refused(span) == "rounds"


def test_rounds_beyond_the_limit_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MAX_ROUNDS", 2)
    told = record({}, rounds=(ROUNDS[0],) * 5)
    assert len(parse(request_span(told)).rounds) == 2


def test_long_names_are_cut() -> None:
    span = request_span(record({}), **{names.WORKLOAD: "w" * 1000})
    assert len(parse(span).workload) == 256


def test_an_attribute_that_nobody_knows_is_none_of_our_business() -> None:
    told = record({"ngram": [(3, 2)]})
    span = request_span(told)
    span.attributes.extend(pairs({"something.else": ["x", 3]}))
    assert parse(span) == told


@pytest.mark.parametrize("seed", range(20))
def test_true_sums_are_never_refused(seed: int) -> None:
    rng = random.Random(seed)
    steps = [(d, rng.randint(0, d)) for d in (rng.randint(1, 8) for _ in range(rng.randint(0, 9)))]
    assert sums_of(steps, k=8).contradiction() == ""
