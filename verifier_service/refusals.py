"""The words behind every decision to verify nothing: what users read as `off_reason`.

Knows candidates and the admission's numbers; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verifier_service.admission import Admission
from verifier_service.candidates import Candidate, Decision
from verifier_service.offers import Offers

# Chance that the first draft is accepted -> the decision that refuses it.
Refuse = Callable[[float], Decision]

NO_CEILING = Decision(None, 0, "num_speculative_tokens is 0")
_OPTED_OUT = Decision(None, 0, "request asked for no speculation")
_AT_END = Decision(None, 0, "no room for a draft before max_tokens or the context limit")
_NOT_ASKED = Decision(None, 0, "no draft asked for")
_NOT_OFFERED = Decision(None, 0, "no draft offered")
_STEP_FULL = Decision(None, 0, "the step has no room for drafts")
PLAIN_PERIOD = Decision(None, 0, "a plain period, to measure what drafts gain")
_MEASURING = Decision(None, 0, "a plain step, to measure its cost again")


def without_offer(candidate: Candidate, closed: Decision | None) -> Decision:
    """The refusal of a candidate that has no usable block; `closed` refuses all drafts, if any."""
    if candidate.opted_out:
        return _OPTED_OUT
    if closed is not None:
        return closed
    if candidate.limit <= 0:
        return _AT_END
    return _NOT_ASKED if candidate.ask <= 0 else _NOT_OFFERED


def decide(
    candidates: Sequence[Candidate],
    offers: Offers,
    counts: Sequence[int],
    refuse: Refuse,
    closed: Decision | None,
) -> list[Decision]:
    """One decision for each candidate: `counts[i]` drafts of offer i, and a reason where none.

    `refuse` words the refusal of an offer, `closed` that of all drafts, if the configuration does.
    """
    decided: list[Decision | None] = [None] * len(candidates)
    for row, (owner, count) in enumerate(zip(offers.owners, counts, strict=True)):
        chance = offers.survivals[row][0]
        decided[owner] = Decision(offers.blocks[row], count) if count else refuse(chance)
    return [
        decision or without_offer(candidate, closed)
        for decision, candidate in zip(decided, candidates, strict=True)
    ]


def scheduled_off(sequences: int) -> Decision:
    """The refusal where the operator's schedule allows no drafts beside so many sequences."""
    return Decision(None, 0, f"num_speculative_tokens_per_batch_size is 0: {sequences} run")


def step_full(_chance: float) -> Decision:
    return _STEP_FULL


def measuring(_chance: float) -> Decision:
    return _MEASURING


def held(_chance: float) -> Decision:
    return PLAIN_PERIOD


class DoesNotPay:
    """Refusals by price: a draft's cost after `used` others, and the tokens it had to emit."""

    __slots__ = ("_cost", "_decisions", "_needed")

    def __init__(self, best: Admission, used: int) -> None:
        at = min(used, len(best.step) - 2)
        self._cost = best.step[at + 1] - best.step[at]
        self._needed = self._cost * best.rate
        # Sequences whose chances read alike share one decision.
        self._decisions: dict[int, Decision] = {}

    def __call__(self, chance: float) -> Decision:
        hundredths = int(chance * 100.0 + 0.5)
        decision = self._decisions.get(hundredths)
        if decision is None:
            reason = (
                f"verifying does not pay: 1 draft costs {self._cost * 1e3:.1f} ms and is expected "
                f"to emit {hundredths / 100.0:.2f} tokens ({self._needed:.2f} needed)"
            )
            decision = self._decisions[hundredths] = Decision(None, 0, reason)
        return decision
