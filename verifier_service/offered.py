"""What is offered for a sequence in a step: proposers' blocks and its own prediction's.

Knows sequences and blocks, and the words for a sequence that cannot be offered any; chooses
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from verifier_service.candidates import Candidate, Decision
from verifier_service.messages import DraftBlock
from verifier_service.sequences import Sequence

_NOT_CONFIGURED = Decision(None, 0, "num_speculative_tokens is 0")
_LOST = Decision(None, 0, "the answer is nowhere in the prediction")


def usable(sequence: Sequence, blocks: Mapping[int, Seq[DraftBlock]]) -> list[DraftBlock]:
    """Blocks that continue the sequence as it is; a late one never reaches a step."""
    length = len(sequence.ids)
    sent = blocks.get(sequence.sequence_id, ())
    offers = [block for block in sent if block.base_length == length and block.token_ids]
    if sequence.request.prediction is not None:
        own = sequence.own_block()
        if own is not None:
            offers.append(own)
    return offers


def candidate(sequence: Sequence, offers: Seq[DraftBlock], asked: int) -> Candidate:
    """The sequence as the controller sees it, for which `asked` drafts were asked."""
    return Candidate(
        sequence.sequence_id,
        offers,
        sequence.most_drafts(),
        len(sequence.ids),
        asked,
        sequence.greedy,
        sequence.draft_limit == 0,
    )


def explained(sequence: Sequence, decision: Decision) -> Decision:
    """The decision, with the true reason where the sequence has no proposer to be offered by."""
    if decision.block is not None or sequence.ask_limit > 0:
        return decision
    request = sequence.request
    if sequence.draft_limit == 0 and request.num_speculative_tokens is None:
        return _NOT_CONFIGURED
    alone = request.prediction is not None
    if alone and sequence.most_drafts() > 0 and sequence.own_block() is None:
        return _LOST
    return decision
