"""What one proposer is asked in a step, and how much of the answer is known beforehand.

Knows no stream: the mirrors make asks, the answers are held against them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from speculation.v1 import proposer_pb2

from verifier_service.messages import DraftBlock

# The share of a step's asks that is let go where look-ahead has answered all others.
_FEW = 0.1


def is_worth_a_wait(unknown: int, asked: int) -> bool:
    """Whether an answer is waited for that is not known for `unknown` of `asked` sequences.

    A few sequences' drafts are not worth the time of all others.
    """
    return unknown > _FEW * asked


@dataclass(frozen=True, slots=True)
class Ask:
    """Drafts wanted of one sequence: what an honest answer must name."""

    epoch: int
    base_length: int
    max_draft_tokens: int


@dataclass(slots=True)
class SentStep:
    """One step as sent.

    `ahead` holds, for each sequence where look-ahead could have answered, the outcome that came
    true, or None; `hits` are the blocks that came of it, `covered` the sequences for which it had
    said that there is no draft.
    """

    step_id: int
    sent_at: float
    asks: dict[int, Ask] = field(default_factory=dict)
    ahead: dict[int, proposer_pb2.OutcomeBlock | None] = field(default_factory=dict)
    hits: dict[int, DraftBlock] = field(default_factory=dict)
    covered: set[int] = field(default_factory=set)
    # The step went on without its answer, as it was meant to.
    let_go: bool = False

    @property
    def awaited(self) -> bool:
        """Whether the answer could bring enough that look-ahead did not."""
        unknown = len(self.asks) - len(self.hits) - len(self.covered)
        return not self.let_go and is_worth_a_wait(unknown, len(self.asks))


class Told(NamedTuple):
    """What is known of the answer to a view that was not sent yet.

    Either `outcome` holds a block of which `wanted` drafts may be used, or `covered` says that
    there is nothing to wait for; neither: the answer is not known, and `rest` may be there, what is
    left of the last answer.
    """

    covered: bool
    outcome: proposer_pb2.OutcomeBlock | None = None
    rest: DraftBlock | None = None
    wanted: int = 0


@dataclass(slots=True)
class ForeseenAnswer:
    """One proposer's part of a `Foreseen`, by sequence."""

    blocks: dict[int, DraftBlock] = field(default_factory=dict)
    stopgaps: dict[int, DraftBlock] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)


# What most views are told, made once. NOTHING: not even asked.
UNKNOWN, COVERED, NOTHING = Told(covered=False), Told(covered=True), Told(covered=True)
