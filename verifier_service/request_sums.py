"""What one traced request's rounds add up to, beyond what every request counts.

Knows rounds; does not know spans. Fed by the account that makes `Finished`, in the same call, so
that a trace and an answer cannot differ. A round costs little: rounds that count alike are counted
together, and are taken apart once, at the end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.acceptance import Acceptance, Round


@dataclass(slots=True)
class ProposerRounds:
    """The steps that verified one proposer's drafts."""

    acceptance: Acceptance
    lookahead_hits: int = 0


class TracedRound(NamedTuple):
    """A round as it was emitted, when (Unix nanoseconds), and the ids that came out."""

    round: Round
    at_ns: int
    token_ids: Sequence[int]


@dataclass(slots=True)
class _Alike:
    """Rounds of one proposer with as many drafts, of which as many were accepted."""

    example: Round
    count: int = 0


@dataclass(slots=True)
class RequestSums:
    """Sums over all rounds of a request, cut as they were emitted; times in nanoseconds.

    `num_spec_tokens` is its ceiling K. At most `keep` rounds are kept one by one, the first ones.
    """

    num_spec_tokens: int
    keep: int = 0
    num_rounds: int = 0
    draft_wait_ns: int = 0
    verify_ns: int = 0
    rounds: list[TracedRound] = field(default_factory=list)
    now_ns: Callable[[], int] = time.time_ns
    _steps: dict[tuple[str, int, int, bool], _Alike] = field(default_factory=dict)
    _off_rounds: Counter[str] = field(default_factory=Counter)

    def add(self, round_: Round, token_ids: Sequence[int]) -> None:
        """Count one round, which emitted `token_ids`."""
        self.num_rounds += 1
        self.draft_wait_ns += round_.draft_wait_ns
        self.verify_ns += round_.verify_ns
        if round_.drafted:
            key = (round_.proposer, round_.drafted, round_.accepted, round_.lookahead_hit)
            alike = self._steps.get(key)
            if alike is None:
                alike = self._steps[key] = _Alike(round_)
            alike.count += 1
        if round_.off_reason:
            self._off_rounds[reason_without_figures(round_.off_reason)] += 1
        if len(self.rounds) < self.keep:
            self.rounds.append(TracedRound(round_, self.now_ns(), token_ids))

    @property
    def off_rounds(self) -> dict[str, int]:
        """Rounds without drafts, by the reason but for its figures."""
        return dict(sorted(self._off_rounds.items()))

    def by_proposer(self) -> dict[str, ProposerRounds]:
        """The steps by the name of the proposer whose drafts were verified."""
        result: dict[str, ProposerRounds] = {}
        for (name, _, _, hit), alike in sorted(self._steps.items()):
            rounds = result.setdefault(name, ProposerRounds(Acceptance(self.num_spec_tokens)))
            rounds.acceptance.add(alike.example, alike.count)
            rounds.lookahead_hits += alike.count if hit else 0
        return result


def reason_without_figures(reason: str) -> str:
    """Behind a colon come figures, other ones each time: as keys they would pile up."""
    return reason.partition(":")[0]
