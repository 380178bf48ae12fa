"""What a verdict makes of its sequence: ids are committed, and its request is told a round.

Knows sequences, decisions and verdicts; does not know queues, blocks or the controller.
"""

from __future__ import annotations

from outrider.acceptance import Round
from verifier_service import constraints
from verifier_service.engines.base import Verdict
from verifier_service.messages import Output, TokenLogprob
from verifier_service.step_plan import Planned, StepTimes


def commit(
    part: Planned, verdict: Verdict, times: StepTimes, prompt_logprobs: tuple[TokenLogprob, ...]
) -> Output:
    """Take a round's tokens into its sequence, cut where it ends; what the request is told.

    The output has a finish reason where the sequence ends: it holds its blocks still. Raises
    ConstraintFailure.
    """
    sequence, decision = part.sequence, part.decision
    block, drafted = decision.block, decision.drafted
    base = sequence.num_output
    ending = sequence.cut(verdict.tokens)
    if sequence.request.constraint is not None:
        ending = constraints.commit(sequence, ending)
    tokens, reason, stop = ending
    emitted = len(tokens)
    sequence.ids.extend(tokens)
    sequence.computed = len(sequence.ids) - 1
    sequence.proposer = block.proposer if block is not None and drafted else ""
    sequence.drafted = drafted
    sequence.accepted = min(verdict.accepted, emitted)
    # Both by place: named arguments take as long again as the objects.
    round_ = Round(
        base,
        len(block.token_ids) + block.refused if block is not None else 0,
        drafted,
        sequence.accepted,
        emitted,
        sequence.proposer,
        decision.off_reason,
        times.draft_wait_ns,
        times.verify_ns,
        block is not None and block.lookahead_hit,
        block.token_ids[:drafted] if block is not None else (),
    )
    queue_ns = sequence.queue_ns if base == 0 else 0
    logprobs = verdict.logprobs[:emitted]
    return Output(
        tuple(tokens),
        round_,
        reason,
        stop,
        sequence.cached,
        "",
        "",
        queue_ns,
        logprobs,
        prompt_logprobs,
    )
