"""What the controller is asked and what it answers, for one sequence of one step."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.records import record
from verifier_service.messages import DraftBlock


@record(frozen=True, slots=True)
class Candidate:
    """One decoding sequence of a step and the blocks offered for it, each by another proposer.

    `limit` is the most drafts that may be verified now (the request's own K, tokens left to
    max_tokens and to the context limit); `ask` how many were asked for; `opted_out` says that the
    request wants no speculation. Sequences without blocks belong in the plan too: they count.
    """

    sequence_id: int
    blocks: Sequence[DraftBlock]
    limit: int
    context_length: int
    ask: int
    greedy: bool = True
    opted_out: bool = False


@record(frozen=True, slots=True)
class Decision:
    """Verify the first `drafted` ids of `block`; `off_reason` says why where that is none."""

    block: DraftBlock | None
    drafted: int
    off_reason: str = ""
