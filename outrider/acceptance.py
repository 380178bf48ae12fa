"""The definitions of every acceptance figure that Outrider shows.

Knows rounds and sums; does not know tokens' text, transports or metric names.
A *step* is a verification that carried at least one draft token. Counts are of what was
emitted: a draft cut by a stop condition was not accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from speculation.v1 import types_pb2

from outrider.records import record


@record(frozen=True, slots=True)
class Round:
    """One verification of one sequence, after cuts by stop conditions.

    `base` is the number of output tokens before it, `offered` the length of the block that the
    chosen proposer gave, `drafted` how many of these were verified, `accepted` how many of them
    were emitted, `emitted` all tokens that came out. Times are nanoseconds.
    """

    base: int
    offered: int
    drafted: int
    accepted: int
    emitted: int
    proposer: str = ""
    off_reason: str = ""
    draft_wait_ns: int = 0
    verify_ns: int = 0
    lookahead_hit: bool = False
    # The drafts that were verified, accepted ones first.
    draft_token_ids: tuple[int, ...] = ()

    def cut(self, emitted: int) -> Round:
        """The same round had only its first `emitted` tokens been emitted."""
        return Round(
            base=self.base,
            offered=self.offered,
            drafted=self.drafted,
            accepted=min(self.accepted, emitted),
            emitted=min(self.emitted, emitted),
            proposer=self.proposer,
            off_reason=self.off_reason,
            draft_wait_ns=self.draft_wait_ns,
            verify_ns=self.verify_ns,
            lookahead_hit=self.lookahead_hit,
            draft_token_ids=self.draft_token_ids,
        )


@dataclass(slots=True)
class Acceptance:
    """Sums over rounds; `num_spec_tokens` is the configured ceiling K."""

    num_spec_tokens: int
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    histogram: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    proposed_per_position: list[int] = field(default_factory=list)
    per_step_accepted: list[int] = field(default_factory=list)
    per_step_drafted: list[int] = field(default_factory=list)
    keep_steps: bool = False

    def __post_init__(self) -> None:
        k = self.num_spec_tokens
        self.histogram = self.histogram or [0] * (k + 1)
        self.accepted_per_position = self.accepted_per_position or [0] * k
        self.proposed_per_position = self.proposed_per_position or [0] * k

    def add(self, round_: Round, times: int = 1) -> None:
        """Count one round, or so many alike; a round without drafts is no step."""
        if round_.drafted == 0:
            return
        if round_.drafted > self.num_spec_tokens:
            raise ValueError(
                f"round drafted {round_.drafted} tokens; the ceiling is {self.num_spec_tokens}"
            )
        self.num_spec_steps += times
        self.num_draft_tokens += times * round_.drafted
        self.num_accepted_draft_tokens += times * round_.accepted
        self.histogram[round_.accepted] += times
        for position in range(round_.drafted):
            self.proposed_per_position[position] += times
        for position in range(round_.accepted):
            self.accepted_per_position[position] += times
        if self.keep_steps:
            self.per_step_accepted.extend([round_.accepted] * times)
            self.per_step_drafted.extend([round_.drafted] * times)

    def merge(self, other: Acceptance) -> None:
        """Add another's sums; both have the same ceiling."""
        if other.num_spec_tokens != self.num_spec_tokens:
            raise ValueError(
                f"cannot merge sums for K={other.num_spec_tokens} into K={self.num_spec_tokens}"
            )
        self.num_spec_steps += other.num_spec_steps
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_draft_tokens += other.num_accepted_draft_tokens
        for mine, theirs in (
            (self.histogram, other.histogram),
            (self.accepted_per_position, other.accepted_per_position),
            (self.proposed_per_position, other.proposed_per_position),
        ):
            for i, value in enumerate(theirs):
                mine[i] += value

    def since(self, earlier: Acceptance) -> Acceptance:
        """What was added after `earlier`, which stands for the same sums at that time.

        Without per-step lists. Both have the same ceiling.
        """
        if earlier.num_spec_tokens != self.num_spec_tokens:
            raise ValueError(
                f"sums for K={earlier.num_spec_tokens} are no earlier ones of K="
                f"{self.num_spec_tokens}"
            )

        def less(now: list[int], then: list[int]) -> list[int]:
            return [a - b for a, b in zip(now, then, strict=True)]

        return Acceptance(
            self.num_spec_tokens,
            self.num_spec_steps - earlier.num_spec_steps,
            self.num_draft_tokens - earlier.num_draft_tokens,
            self.num_accepted_draft_tokens - earlier.num_accepted_draft_tokens,
            less(self.histogram, earlier.histogram),
            less(self.accepted_per_position, earlier.accepted_per_position),
            less(self.proposed_per_position, earlier.proposed_per_position),
        )

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / steps, from 1.0 to K+1; 1.0 when there were no steps."""
        return mean_acceptance_length(self.num_accepted_draft_tokens, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted, from 0 to 1; 0.0 when nothing was drafted."""
        return draft_acceptance_rate(self.num_accepted_draft_tokens, self.num_draft_tokens)

    def per_position_rates(self) -> list[float]:
        """Accepted at position j over the steps that reached j, i.e. carried a draft there."""
        pairs = zip(self.accepted_per_position, self.proposed_per_position, strict=True)
        return [a / p if p else 0.0 for a, p in pairs]

    def to_proto(self) -> types_pb2.AcceptanceStats:
        return types_pb2.AcceptanceStats(
            num_spec_tokens=self.num_spec_tokens,
            num_spec_steps=self.num_spec_steps,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_draft_tokens=self.num_accepted_draft_tokens,
            acceptance_histogram=self.histogram,
            accepted_per_position=self.accepted_per_position,
            proposed_per_position=self.proposed_per_position,
            per_step_accepted=self.per_step_accepted,
            per_step_drafted=self.per_step_drafted,
        )


def mean_acceptance_length(accepted: int, steps: int) -> float:
    """1 + accepted / steps; 1.0 when there were no steps."""
    return 1.0 + accepted / steps if steps else 1.0


def draft_acceptance_rate(accepted: int, drafted: int) -> float:
    """Accepted / drafted; 0.0 when nothing was drafted."""
    return accepted / drafted if drafted else 0.0


def speculative_decoding_metrics(
    stats: types_pb2.AcceptanceStats, *, detailed: bool = False
) -> dict[str, object]:
    """vLLM's `metrics.speculative_decoding` object (`summary`, or `detailed`)."""
    summary: dict[str, object] = {
        "mean_acceptance_length": mean_acceptance_length(
            stats.num_accepted_draft_tokens, stats.num_spec_steps
        ),
        "draft_acceptance_rate": draft_acceptance_rate(
            stats.num_accepted_draft_tokens, stats.num_draft_tokens
        ),
        "acceptance_histogram": list(stats.acceptance_histogram),
        "num_spec_steps": stats.num_spec_steps,
        "num_accepted_draft_tokens": stats.num_accepted_draft_tokens,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_spec_tokens": stats.num_spec_tokens,
    }
    if detailed:
        summary["per_step_accepted"] = _or_none(stats.per_step_accepted)
        summary["per_step_drafted"] = _or_none(stats.per_step_drafted)
    return summary


def _or_none(values: Sequence[int]) -> list[int] | None:
    return list(values) or None


def total(parts: Iterable[Acceptance], num_spec_tokens: int) -> Acceptance:
    """The sum of several; an empty one where there are none."""
    result = Acceptance(num_spec_tokens)
    for part in parts:
        result.merge(part)
    return result
