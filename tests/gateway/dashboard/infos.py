"""GetInfo answers of verifiers that did something, for tests of what is told of them."""

from __future__ import annotations

from collections.abc import Sequence

from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from outrider.acceptance import Acceptance, Round

K = 3


def info(
    drafted_accepted: Sequence[tuple[int, int]] = (),
    *,
    instance: str = "one",
    tokens: int = 0,
    waits: int = 0,
    off: int = 0,
    hits: int = 0,
    misses: int = 0,
    proposer: str = "ngram",
) -> pb.GetInfoResponse:
    """A verifier that verified rounds of so many drafts, of which so many were accepted."""
    sums = Acceptance(K)
    for drafted, accepted in drafted_accepted:
        sums.add(Round(0, drafted, drafted, accepted, accepted + 1))
    return pb.GetInfoResponse(
        instance_id=instance,
        model="m",
        num_speculative_tokens=K,
        generation_tokens_total=tokens,
        acceptance=sums.to_proto(),
        acceptance_by_proposer=[
            pb.ProposerAcceptance(
                name=proposer,
                num_spec_steps=sums.num_spec_steps,
                num_draft_tokens=sums.num_draft_tokens,
                num_accepted_draft_tokens=sums.num_accepted_draft_tokens,
            )
        ],
        proposers=[
            pb.ProposerState(
                name=proposer,
                method="ngram",
                state="connected",
                lookahead_hits=hits,
                lookahead_misses=misses,
                dropped={"stale": 2},
            )
        ],
        step_times=pb.StepTimes(
            draft_wait=types_pb2.Histogram(
                upper_bounds=[0.1], counts=[waits, 0], sum=waits * 0.002
            ),
        ),
        off_rounds={"no draft arrived": off} if off else {},
        running_requests=2,
        waiting_requests=1,
        speculation_state="on",
        step_cost_ms={1: 30.0, 4: 33.0},
    )
