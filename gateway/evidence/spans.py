"""From a `speculation.request` span to a RequestRecord, or to what is wrong with it.

Knows the names of outrider/telemetry.py and which numbers must agree; keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gateway.evidence.attributes import Attributes, ContentError
from gateway.evidence.records import UNKNOWN, ProposerShare, RequestRecord, RoundRecord
from gateway.evidence.sums import AcceptanceSums
from outrider import telemetry as names

# More rounds than any answer needs that somebody looks at; the sums count all of them.
MAX_ROUNDS: Final = 20_000
MAX_PROPOSERS: Final = 256
# A clock that is further ahead than this would put its spans where nobody looks.
MAX_AHEAD_NS: Final = 24 * 3600 * 10**9
_MAX_TEXT: Final = 1024
_SUMS: Final = (names.STEPS, names.DRAFT_TOKENS, names.ACCEPTED_TOKENS, names.OUTPUT_TOKENS)


def is_request(span: Span) -> bool:
    """Whether the span tells of a request's speculation."""
    return span.name == names.REQUEST_SPAN


def parse_request(span: Span, now_ns: int) -> RequestRecord:
    """Raises ContentError. `now_ns` is the receiver's clock, since 1970."""
    _check_identity(span, now_ns)
    at = Attributes(span.attributes)
    failed = span.status.code == Status.STATUS_CODE_ERROR
    # One that was refused, or whose client left before it began, has no sums at all.
    begun = any(name in at for name in _SUMS)
    sums = _sums(at, required=begun)
    rounds = tuple(
        _round(event) for event in _events(span, names.ROUND_EVENT, MAX_ROUNDS, keep_first=True)
    )
    shares = [_share(event) for event in _events(span, names.PROPOSER_EVENT, MAX_PROPOSERS)]
    ratio = at.number(names.SAMPLING_RATIO)
    if ratio is not None and not 0 < ratio <= 1:
        raise ContentError("range", f"{names.SAMPLING_RATIO} is {ratio}")
    return RequestRecord(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        request_id=at.string(names.RESPONSE_ID) or span.span_id.hex(),
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        model=at.string(names.RESPONSE_MODEL) or at.string(names.REQUEST_MODEL),
        verifier=at.string(names.VERIFIER),
        workload=at.string(names.WORKLOAD),
        temperature=at.number(names.TEMPERATURE),
        rule=at.string(names.RULE),
        num_speculative_tokens=at.count(names.CEILING),
        prompt_tokens=at.count(names.INPUT_TOKENS),
        completion_tokens=at.count(names.OUTPUT_TOKENS, required=begun),
        finish_reason=next(iter(at.strings(names.FINISH_REASONS) or ()), ""),
        error=(at.string(names.ERROR_TYPE) or "error") if failed else "",
        num_rounds=at.count(names.ROUNDS),
        sums=sums,
        draft_wait_ns=at.count(names.DRAFT_WAIT_NS),
        verify_ns=at.count(names.VERIFY_NS),
        queue_ns=at.count(names.QUEUE_NS),
        first_token_ns=at.count(names.FIRST_TOKEN_NS),
        lookahead_hits=at.count(names.LOOKAHEAD_HITS),
        off=_off(at),
        proposers=_complete(shares, sums),
        rounds=rounds,
        sampling_ratio=1.0 if ratio is None else ratio,
        size=span.ByteSize(),
    )


def _check_identity(span: Span, now_ns: int) -> None:
    if len(span.trace_id) != 16 or not any(span.trace_id):
        raise ContentError("identity", "trace_id is not 16 bytes that are not all zero")
    if len(span.span_id) != 8 or not any(span.span_id):
        raise ContentError("identity", "span_id is not 8 bytes that are not all zero")
    start, end = span.start_time_unix_nano, span.end_time_unix_nano
    if not 0 < start <= end:
        raise ContentError("times", f"the span starts at {start} and ends at {end}")
    if end > now_ns + MAX_AHEAD_NS:
        raise ContentError("times", "the span ends more than a day from now")


def _sums(at: Attributes, *, required: bool) -> AcceptanceSums:
    sums = AcceptanceSums(
        at.count(names.STEPS, required=required),
        at.count(names.DRAFT_TOKENS, required=required),
        at.count(names.ACCEPTED_TOKENS, required=required),
        at.counts(names.HISTOGRAM),
        at.counts(names.ACCEPTED_PER_POSITION),
        at.counts(names.PROPOSED_PER_POSITION),
    )
    contradiction = sums.contradiction()
    if contradiction:
        raise ContentError("sums", contradiction)
    return sums


def _events(span: Span, name: str, limit: int, *, keep_first: bool = False) -> Sequence[Span.Event]:
    events = [event for event in span.events if event.name == name]
    if len(events) > limit and not keep_first:
        raise ContentError("size", f"{len(events)} events {name}; {limit} are allowed")
    return events[:limit]


def _share(event: Span.Event) -> ProposerShare:
    at = Attributes(event.attributes)
    return ProposerShare(
        name=at.string(names.PROPOSER) or UNKNOWN,
        method=at.string(names.METHOD) or UNKNOWN,
        sums=_sums(at, required=True),
        lookahead_hits=at.count(names.LOOKAHEAD_HITS),
    )


def _complete(shares: Sequence[ProposerShare], sums: AcceptanceSums) -> tuple[ProposerShare, ...]:
    """The shares, and what no proposer claims, so that they add up to `sums`."""
    if len({share.name for share in shares}) != len(shares):
        raise ContentError("proposers", "a proposer has two events")
    left: AcceptanceSums | None = sums
    for share in shares:
        left = left.less(share.sums) if left is not None else None
    if left is None or left.contradiction():
        raise ContentError("proposers", "proposers have more than the request")
    if left.num_spec_steps == 0:
        return tuple(shares)
    if any(share.name == UNKNOWN for share in shares):
        raise ContentError("proposers", f"a proposer is named {UNKNOWN!r}, and others are missing")
    return (*shares, ProposerShare(UNKNOWN, UNKNOWN, left))


def _round(event: Span.Event) -> RoundRecord:
    at = Attributes(event.attributes)
    round_ = RoundRecord(
        base=at.count(names.ROUND_BASE),
        offered=at.count(names.ROUND_OFFERED),
        verified=at.count(names.ROUND_VERIFIED, required=True),
        accepted=at.count(names.ROUND_ACCEPTED, required=True),
        emitted=at.count(names.ROUND_EMITTED, required=True),
        proposer=at.string(names.PROPOSER),
        off_reason=at.string(names.ROUND_OFF_REASON),
        draft_wait_ns=at.count(names.DRAFT_WAIT_NS),
        verify_ns=at.count(names.VERIFY_NS),
        lookahead_hit=at.flag(names.ROUND_LOOKAHEAD_HIT),
        draft_texts=at.strings(names.ROUND_DRAFT_TEXTS, _MAX_TEXT),
        emitted_texts=at.strings(names.ROUND_EMITTED_TEXTS, _MAX_TEXT),
    )
    if not round_.accepted <= min(round_.verified, round_.emitted):
        raise ContentError(
            "rounds",
            f"a round verified {round_.verified}, accepted {round_.accepted} and emitted "
            f"{round_.emitted}",
        )
    return round_


def _off(at: Attributes) -> tuple[tuple[str, int], ...]:
    reasons = at.strings(names.OFF_REASONS) or ()
    counts = at.counts(names.OFF_ROUNDS)
    if len(reasons) != len(counts):
        raise ContentError("off", f"{len(reasons)} off reasons have {len(counts)} counts")
    result: dict[str, int] = {}
    for reason, count in zip(reasons, counts, strict=True):
        result[reason] = result.get(reason, 0) + count
    return tuple(result.items())
