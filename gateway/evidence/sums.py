"""Sums of acceptance that add up: of one request, one proposer, or many of them.

Knows counts and the figures derived from them; does not know where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from outrider.acceptance import draft_acceptance_rate, mean_acceptance_length


@dataclass(frozen=True, slots=True)
class AcceptanceSums:
    """What outrider/acceptance.py defines, of a request or of one proposer's share of it.

    `histogram[j]` counts steps that accepted j drafts; the other lists are by draft position.
    """

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    histogram: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    proposed_per_position: tuple[int, ...] = ()

    def contradiction(self) -> str:
        """Why these cannot be sums over rounds; empty where they can."""
        steps, drafted = self.num_spec_steps, self.num_draft_tokens
        accepted = self.num_accepted_draft_tokens
        if accepted > drafted:
            return f"{accepted} accepted of {drafted} draft tokens"
        if drafted < steps:
            return f"{drafted} draft tokens in {steps} steps"
        if sum(self.histogram) != steps:
            return f"the histogram holds {sum(self.histogram)} of {steps} steps"
        if sum(j * n for j, n in enumerate(self.histogram)) != accepted:
            return f"the histogram does not sum to {accepted} accepted draft tokens"
        if sum(self.proposed_per_position) != drafted:
            return f"positions do not sum to {drafted} draft tokens"
        if sum(self.accepted_per_position) != accepted:
            return f"positions do not sum to {accepted} accepted draft tokens"
        if self.proposed_per_position and self.proposed_per_position[0] != steps:
            return f"{self.proposed_per_position[0]} first draft tokens in {steps} steps"
        # A step that accepted j drafts accepted one at each position before j.
        reached = list(accumulate(reversed(self.histogram[1:])))[::-1]
        if _trimmed(reached) != _trimmed(self.accepted_per_position):
            return "the histogram and the positions disagree"
        proposed = _padded(self.proposed_per_position, len(self.accepted_per_position))
        if any(a > p for a, p in zip(self.accepted_per_position, proposed, strict=False)):
            return "a position has more accepted than proposed draft tokens"
        return ""

    def less(self, other: AcceptanceSums) -> AcceptanceSums | None:
        """What is left when `other` is taken away; None where `other` holds more than this."""
        left = AcceptanceSums(
            self.num_spec_steps - other.num_spec_steps,
            self.num_draft_tokens - other.num_draft_tokens,
            self.num_accepted_draft_tokens - other.num_accepted_draft_tokens,
            _minus(self.histogram, other.histogram),
            _minus(self.accepted_per_position, other.accepted_per_position),
            _minus(self.proposed_per_position, other.proposed_per_position),
        )
        counts = (left.num_spec_steps, left.num_draft_tokens, left.num_accepted_draft_tokens)
        lists = (*left.histogram, *left.accepted_per_position, *left.proposed_per_position)
        return None if min((*counts, *lists)) < 0 else left


def _minus(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    length = max(len(a), len(b))
    return tuple(x - y for x, y in zip(_padded(a, length), _padded(b, length), strict=True))


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return values + (0,) * (length - len(values))


def _trimmed(values: Sequence[int]) -> tuple[int, ...]:
    """Without the zeros at its end."""
    length = max((i + 1 for i, value in enumerate(values) if value), default=0)
    return tuple(values[:length])


@dataclass(slots=True)
class Tally:
    """Sums over requests, as `/v1/acceptance` shows them."""

    requests: int = 0
    completion_tokens: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    histogram: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    proposed_per_position: list[int] = field(default_factory=list)

    def add(self, sums: AcceptanceSums, requests: int, completion_tokens: int) -> None:
        """Count `requests` requests, or a proposer's share of them."""
        self.requests += requests
        self.completion_tokens += completion_tokens
        self.num_spec_steps += sums.num_spec_steps
        self.num_draft_tokens += sums.num_draft_tokens
        self.num_accepted_draft_tokens += sums.num_accepted_draft_tokens
        add_elementwise(self.histogram, sums.histogram)
        add_elementwise(self.accepted_per_position, sums.accepted_per_position)
        add_elementwise(self.proposed_per_position, sums.proposed_per_position)

    def merge(self, other: Tally) -> None:
        """Add another's sums."""
        self.add(other.frozen(), other.requests, other.completion_tokens)

    def frozen(self) -> AcceptanceSums:
        return AcceptanceSums(
            self.num_spec_steps,
            self.num_draft_tokens,
            self.num_accepted_draft_tokens,
            tuple(self.histogram),
            tuple(self.accepted_per_position),
            tuple(self.proposed_per_position),
        )

    def at_position(self, position: int) -> Tally:
        """The share of one draft position: the steps that carried a draft there."""
        proposed = _at(self.proposed_per_position, position)
        accepted = _at(self.accepted_per_position, position)
        return Tally(
            requests=self.requests,
            completion_tokens=self.completion_tokens,
            num_spec_steps=proposed,
            num_draft_tokens=proposed,
            num_accepted_draft_tokens=accepted,
            histogram=[proposed - accepted, accepted],
            accepted_per_position=[accepted],
            proposed_per_position=[proposed],
        )

    @property
    def num_positions(self) -> int:
        """One more than the last position at which a draft token was proposed."""
        return max((i + 1 for i, n in enumerate(self.proposed_per_position) if n), default=0)

    def to_json(self) -> dict[str, object]:
        """The fields of the HTTP contract; lists without the zeros at their ends."""
        return {
            "requests": self.requests,
            "completion_tokens": self.completion_tokens,
            "num_spec_steps": self.num_spec_steps,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "mean_acceptance_length": mean_acceptance_length(
                self.num_accepted_draft_tokens, self.num_spec_steps
            ),
            "draft_acceptance_rate": draft_acceptance_rate(
                self.num_accepted_draft_tokens, self.num_draft_tokens
            ),
            "acceptance_histogram": list(_trimmed(self.histogram)),
            "accepted_per_position": list(
                _padded(_trimmed(self.accepted_per_position), self.num_positions)
            ),
            "proposed_per_position": list(_trimmed(self.proposed_per_position)),
        }


def add_elementwise(target: list[int], values: Sequence[int]) -> None:
    """Add `values` to `target`, which grows to their length."""
    target.extend([0] * (len(values) - len(target)))
    for i, value in enumerate(values):
        target[i] += value


def _at(values: Sequence[int], position: int) -> int:
    return values[position] if position < len(values) else 0
