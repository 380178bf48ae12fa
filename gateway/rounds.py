"""Rounds of verification as responses show them (`speculative_decoding.rounds`).

Knows the objects' fields; what a round is, `outrider.acceptance.Round` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from speculation.v1 import verifier_pb2 as pb

from gateway.generation import Choice

# The member of responses and chunks, beside `choices`; the request's field has the same name.
MEMBER: Final = "speculative_decoding"

_NS_PER_MS: Final = 1e6


def round_objects(index: int, rounds: Iterable[pb.Round]) -> list[dict[str, Any]]:
    """`rounds` of choice `index`, in order; times in milliseconds, null for what there is not."""
    return [
        {
            "index": index,
            "base": r.base,
            "offered": r.offered,
            "drafted": r.drafted,
            "accepted": r.accepted,
            "emitted": r.emitted,
            "proposer": r.proposer or None,
            "off_reason": r.off_reason or None,
            "draft_wait_ms": r.draft_wait_ns / _NS_PER_MS,
            "verify_ms": r.verify_ns / _NS_PER_MS,
            "lookahead_hit": r.lookahead_hit,
            "draft_token_ids": list(r.draft_token_ids),
        }
        for r in rounds
    ]


def rounds_of_choices(choices: Sequence[Choice]) -> dict[str, Any]:
    """The member of a whole response: all rounds, those of one choice together."""
    return {"rounds": [o for c in choices for o in round_objects(c.call.index, c.rounds)]}


def rounds_of_delta(choice: Choice, delta: pb.Delta) -> dict[str, Any]:
    """The member of a chunk: the rounds behind its tokens."""
    return {"rounds": round_objects(choice.call.index, delta.rounds)}
