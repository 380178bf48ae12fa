"""Runs a controller over recorded rounds: what it would have decided, and what that would cost.

Knows traces, prices and the controller's calls in the order in which the engine's thread makes
them; runs no model. What is accepted is read from the recording, so that every policy meets the
same drafts: differences between two replays are differences between their policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from verifier_service.candidates import Candidate, Decision
from verifier_service.controller import Controller
from verifier_service.messages import DraftBlock
from verifier_service.simulation.recording import Offer
from verifier_service.simulation.step_costs import StepCost
from verifier_service.simulation.traces import Trace

# A step's number -> seconds that asking for drafts adds to it.
Asking = Callable[[int], float]


@dataclass(slots=True)
class Replayed:
    """What a replay emitted and took, step by step; seconds contain what asking added."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: int = 0
    asked: int = 0
    # Steps that began with speculation on, and rounds without drafts by the kind of reason.
    on: int = 0
    off_reasons: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return sum(self.tokens) / sum(self.seconds) if self.seconds else 0.0


@dataclass(slots=True)
class _Running:
    trace: Trace
    position: int


def replay(
    traces: Sequence[Trace],
    controller: Controller,
    cost: StepCost,
    *,
    ceiling: int,
    concurrency: int,
    noise: Sequence[float] = (),
    asking: Asking = lambda _step: 0.0,
    drain: bool = True,
) -> Replayed:
    """Run `concurrency` sequences at a time, each followed by the next, until all have ended.

    `noise` are factors of the steps' seconds, taken in turn. Without `drain` it ends as soon as
    fewer sequences are left than run at a time. Raises ValueError for a concurrency below 1.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; allowed: 1 or more")
    waiting = list(reversed([trace for trace in traces if trace.end > trace.start]))
    running: list[_Running] = []
    result = Replayed()
    step = 0
    while waiting or running:
        while waiting and len(running) < concurrency:
            trace = waiting.pop()
            running.append(_Running(trace, trace.start))
        if not drain and len(running) < concurrency:
            break
        _step(running, controller, cost, ceiling, noise, asking, step, result)
        step += 1
        for one in [one for one in running if one.position >= one.trace.end]:
            running.remove(one)
            controller.close(one.trace.sequence)
    return result


def _step(
    running: Sequence[_Running],
    controller: Controller,
    cost: StepCost,
    ceiling: int,
    noise: Sequence[float],
    asking: Asking,
    step: int,
    result: Replayed,
) -> None:
    sequences = len(running)
    limits = [one.trace.limit_at(one.position, ceiling) for one in running]
    asks = [controller.wanted(sequences, limit) for limit in limits]
    offers = [one.trace.offers_at(one.position) for one in running]
    candidates = [
        _candidate(one, limit, ask, offered)
        for one, limit, ask, offered in zip(running, limits, asks, offers, strict=True)
    ]
    context = sum(one.position for one in running)
    decisions = controller.plan(candidates, total_context=context, running=sequences)
    drafted = sum(decision.drafted for decision in decisions)
    factor = noise[step % len(noise)] if noise else 1.0
    seconds = cost.seconds(sequences + drafted, sequences, context) * factor
    waited = asking(step) if any(asks) else 0.0
    controller.observe_step(sequences, sequences + drafted, context, seconds)
    emitted = 0
    for one, candidate, decision, offered in zip(
        running, candidates, decisions, offers, strict=True
    ):
        accepted = _teach(controller, candidate, decision, offered)
        result.accepted += accepted
        tokens = min(accepted + 1, one.trace.end - one.position)
        one.position += tokens
        emitted += tokens
        if decision.off_reason:
            result.off_reasons[decision.off_reason.partition(":")[0]] += 1
    if any(asks):
        controller.observe_wait(waited)
        result.asked += 1
    result.tokens.append(emitted)
    result.seconds.append(seconds + waited)
    result.drafted.append(drafted)
    result.on += controller.state() == "on"


def _candidate(one: _Running, limit: int, ask: int, offers: Sequence[Offer]) -> Candidate:
    blocks = [
        DraftBlock(
            offer.proposer,
            one.position,
            # The controller reads how many there are, never which.
            (0,) * min(offer.offered, ask),
            match_length=offer.match_length,
            confidences=offer.confidences[: min(offer.offered, ask)],
        )
        for offer in offers
        if min(offer.offered, ask) > 0
    ]
    return Candidate(one.trace.sequence, blocks, limit, one.position, ask, one.trace.greedy)


def _teach(
    controller: Controller, candidate: Candidate, decision: Decision, offers: Sequence[Offer]
) -> int:
    """Tell the controller how all blocks did, as the scheduler does; accepted drafts."""
    right = {offer.proposer: offer.right for offer in offers}
    verified = decision.block if decision.drafted else None
    accepted = 0
    if verified is not None:
        accepted = min(right[verified.proposer], decision.drafted)
        controller.observe_round(
            candidate.sequence_id,
            verified,
            greedy=candidate.greedy,
            drafted=decision.drafted,
            accepted=accepted,
        )
    for block in candidate.blocks:
        if block is verified:
            continue
        compared = min(len(block.token_ids), accepted + 1)
        matched = min(right[block.proposer], compared)
        controller.observe_shadow(
            candidate.sequence_id,
            block,
            greedy=candidate.greedy,
            compared=min(matched + 1, compared),
            matched=matched,
        )
    return accepted
