"""What one traced request's rounds add up to, beyond what every request counts.

Knows rounds; does not know spans. Fed by the account that makes `Finished`, in the same call, so
that a trace and an answer cannot differ.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.acceptance import Acceptance, Round


@dataclass(slots=True)
class ProposerRounds:
    """The steps that verified one proposer's drafts."""

    acceptance: Acceptance
    lookahead_hits: int = 0


@dataclass(frozen=True, slots=True)
class TracedRound:
    """A round as it was emitted, when (Unix nanoseconds), and the ids that came out."""

    round: Round
    at_ns: int
    token_ids: Sequence[int]


@dataclass(slots=True)
class RequestSums:
    """Sums over all rounds of a request, cut as they were emitted; times in nanoseconds.

    `num_spec_tokens` is its ceiling K. `off_rounds` counts rounds without drafts by reason, but
    for the reason's figures. At most `keep` rounds are kept one by one, the first ones.
    """

    num_spec_tokens: int
    keep: int = 0
    num_rounds: int = 0
    lookahead_hits: int = 0
    draft_wait_ns: int = 0
    verify_ns: int = 0
    off_rounds: Counter[str] = field(default_factory=Counter)
    by_proposer: dict[str, ProposerRounds] = field(default_factory=dict)
    rounds: list[TracedRound] = field(default_factory=list)
    now_ns: Callable[[], int] = time.time_ns

    def add(self, round_: Round, token_ids: Sequence[int]) -> None:
        """Count one round, which emitted `token_ids`."""
        self.num_rounds += 1
        self.draft_wait_ns += round_.draft_wait_ns
        self.verify_ns += round_.verify_ns
        if round_.drafted:
            rounds = self.by_proposer.get(round_.proposer)
            if rounds is None:
                rounds = ProposerRounds(Acceptance(self.num_spec_tokens))
                self.by_proposer[round_.proposer] = rounds
            rounds.acceptance.add(round_)
            if round_.lookahead_hit:
                rounds.lookahead_hits += 1
                self.lookahead_hits += 1
        if round_.off_reason:
            self.off_rounds[reason_without_figures(round_.off_reason)] += 1
        if len(self.rounds) < self.keep:
            self.rounds.append(TracedRound(round_, self.now_ns(), token_ids))


def reason_without_figures(reason: str) -> str:
    """Behind a colon come figures, other ones each time: as keys they would pile up."""
    return reason.partition(":")[0]
