"""What proposers offered along each recorded sequence, by position.

Knows recorded rounds; knows no costs and no controller. A replay that verifies more or less than
was verified then reaches positions at which no round began: there the block before it goes on, as
far as it was right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from verifier_service.simulation.recording import Offer, RecordedRound, RecordedStep


@dataclass(slots=True)
class Trace:
    """One sequence from its first round to its end; positions count its ids, the prompt's too.

    `capped` is the position at which max_tokens or the context's limit ended it, as far as the
    rounds near it told; 0 where they did not.
    """

    sequence: int
    greedy: bool
    start: int
    end: int
    capped: int = 0
    _offers: dict[int, tuple[Offer, ...]] = field(default_factory=dict)
    _longest: int = 0

    def add(self, part: RecordedRound, ceiling: int) -> None:
        """Take in the sequence's next round."""
        self.end = max(self.end, part.position + part.emitted)
        if part.limit < ceiling:
            self.capped = part.position + part.limit + 1
        if part.ask > 0:
            self._offers[part.position] = part.offers
            self._longest = max([self._longest, *(offer.offered for offer in part.offers)])

    def offers_at(self, position: int) -> tuple[Offer, ...]:
        """What proposers would offer there: as recorded, or what is left of an earlier block.

        One block of each proposer at most. Empty where nothing is known of the position: no drafts
        were asked for then.
        """
        exact = self._offers.get(position)
        if exact is not None:
            return exact
        for back in range(1, self._longest):
            earlier = self._offers.get(position - back)
            if earlier is not None:
                return tuple(_later(offer, back) for offer in earlier if offer.right >= back)
        return ()

    def limit_at(self, position: int, ceiling: int) -> int:
        """Drafts that may be verified there: a round emits one token more than it accepts."""
        if not self.capped:
            return ceiling
        return max(min(ceiling, self.capped - position - 1), 0)


def traces_of(steps: Iterable[RecordedStep], ceiling: int) -> list[Trace]:
    """The sequences of a recording, in the order in which they first decoded."""
    traces: dict[int, Trace] = {}
    for step in steps:
        for part in step.rounds:
            trace = traces.get(part.sequence)
            if trace is None:
                trace = traces[part.sequence] = Trace(
                    part.sequence, part.greedy, part.position, part.position
                )
            trace.add(part, ceiling)
    return list(traces.values())


def _later(offer: Offer, back: int) -> Offer:
    return replace(
        offer,
        offered=offer.offered - back,
        right=offer.right - back,
        match_length=offer.match_length + back if offer.match_length else 0,
        confidences=offer.confidences[back:],
    )
