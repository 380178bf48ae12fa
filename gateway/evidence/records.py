"""What is known of one request's speculation: a `speculation.request` span, read and checked.

Knows the fields and their JSON; does not know OTLP, files or HTTP. Times are nanoseconds, absolute
ones since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.evidence.sums import AcceptanceSums
from outrider.acceptance import draft_acceptance_rate, mean_acceptance_length

# The proposer of steps that no proposer's sums claim.
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProposerShare:
    """What one proposer's drafts did in a request."""

    name: str
    method: str
    sums: AcceptanceSums
    lookahead_hits: int = 0

    def to_json(self) -> dict[str, object]:
        sums = self.sums
        return {
            "name": self.name,
            "method": self.method,
            "num_spec_steps": sums.num_spec_steps,
            "num_draft_tokens": sums.num_draft_tokens,
            "num_accepted_draft_tokens": sums.num_accepted_draft_tokens,
            "acceptance_histogram": list(sums.histogram),
            "accepted_per_position": list(sums.accepted_per_position),
            "proposed_per_position": list(sums.proposed_per_position),
            "lookahead_hits": self.lookahead_hits,
        }


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One verification. Texts are there only where the verifier traces content."""

    base: int
    offered: int
    verified: int
    accepted: int
    emitted: int
    proposer: str = ""
    off_reason: str = ""
    draft_wait_ns: int = 0
    verify_ns: int = 0
    lookahead_hit: bool = False
    draft_texts: tuple[str, ...] | None = None
    emitted_texts: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, object]:
        result: dict[str, object] = {
            "base": self.base,
            "offered": self.offered,
            "verified": self.verified,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "proposer": self.proposer,
            "off_reason": self.off_reason,
            "draft_wait_ms": _ms(self.draft_wait_ns),
            "verify_ms": _ms(self.verify_ns),
            "lookahead_hit": self.lookahead_hit,
        }
        if self.draft_texts is not None:
            result["draft_texts"] = list(self.draft_texts)
        if self.emitted_texts is not None:
            result["emitted_texts"] = list(self.emitted_texts)
        return result


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One generation: one choice of a request. (`trace_id`, `span_id`) is unique, in hex.

    `proposers` add up to `sums`. `off` are (reason, rounds without drafts). `temperature` is None
    where the span did not say. `finish_reason` and `error` are empty where there is none. `size` is
    the span's in bytes, for bounds of memory.
    """

    trace_id: str
    span_id: str
    request_id: str
    started_ns: int
    ended_ns: int
    model: str = ""
    verifier: str = ""
    workload: str = ""
    temperature: float | None = None
    rule: str = ""
    num_speculative_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    error: str = ""
    num_rounds: int = 0
    sums: AcceptanceSums = field(default_factory=AcceptanceSums)
    draft_wait_ns: int = 0
    verify_ns: int = 0
    queue_ns: int = 0
    first_token_ns: int = 0
    lookahead_hits: int = 0
    off: tuple[tuple[str, int], ...] = ()
    proposers: tuple[ProposerShare, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    sampling_ratio: float = 1.0
    size: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        return self.trace_id, self.span_id

    @property
    def temperature_bucket(self) -> str:
        return temperature_bucket(self.temperature)

    def to_json(self, *, with_rounds: bool = False) -> dict[str, object]:
        """The contract's RequestRecord; `rounds` only where asked for and traced in detail."""
        sums = self.sums
        result: dict[str, object] = {
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "started": self.started_ns / 1e9,
            "duration_ms": _ms(self.ended_ns - self.started_ns),
            "model": self.model,
            "verifier": self.verifier,
            "workload": self.workload,
            "temperature": self.temperature,
            "rule": self.rule,
            "num_speculative_tokens": self.num_speculative_tokens,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "finish_reason": self.finish_reason or None,
            "error": self.error or None,
            "num_rounds": self.num_rounds,
            "num_spec_steps": sums.num_spec_steps,
            "num_draft_tokens": sums.num_draft_tokens,
            "num_accepted_draft_tokens": sums.num_accepted_draft_tokens,
            "acceptance_histogram": list(sums.histogram),
            "accepted_per_position": list(sums.accepted_per_position),
            "proposed_per_position": list(sums.proposed_per_position),
            "mean_acceptance_length": mean_acceptance_length(
                sums.num_accepted_draft_tokens, sums.num_spec_steps
            ),
            "draft_acceptance_rate": draft_acceptance_rate(
                sums.num_accepted_draft_tokens, sums.num_draft_tokens
            ),
            "draft_wait_ms": _ms(self.draft_wait_ns),
            "verify_ms": _ms(self.verify_ns),
            "queue_ms": _ms(self.queue_ns),
            "first_token_ms": _ms(self.first_token_ns),
            "lookahead_hits": self.lookahead_hits,
            "off": dict(self.off),
            "proposers": [share.to_json() for share in self.proposers],
        }
        if with_rounds and self.rounds:
            result["rounds"] = [round_.to_json() for round_ in self.rounds]
        return result


# Upper bounds and names; sampling behaves alike within one.
TEMPERATURE_BUCKETS = ((0.0, "0"), (0.5, "0-0.5"), (1.0, "0.5-1"), (2.0, "1-2"))
HOTTER = "above 2"


def temperature_bucket(temperature: float | None) -> str:
    """The name of the range that holds `temperature`: its upper end belongs to it."""
    if temperature is None:
        return UNKNOWN
    for bound, name in TEMPERATURE_BUCKETS:
        if temperature <= bound:
            return name
    return HOTTER


def _ms(nanoseconds: int) -> float:
    return nanoseconds / 1e6
