"""Rounds as the protocol tells them."""

from __future__ import annotations

from speculation.v1 import verifier_pb2

from outrider.acceptance import Round


def round_message(round_: Round) -> verifier_pb2.Round:
    """The message of one round, as it was emitted."""
    return verifier_pb2.Round(
        base=round_.base,
        offered=round_.offered,
        drafted=round_.drafted,
        accepted=round_.accepted,
        emitted=round_.emitted,
        proposer=round_.proposer,
        off_reason=round_.off_reason,
        draft_wait_ns=round_.draft_wait_ns,
        verify_ns=round_.verify_ns,
        lookahead_hit=round_.lookahead_hit,
        draft_token_ids=round_.draft_token_ids,
    )
