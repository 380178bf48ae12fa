"""The one block of each sequence that may be verified in a step, with its drafts' chances.

Knows candidates, estimates and the choice between proposers; knows no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from verifier_service.candidates import Candidate
from verifier_service.choice import ChooseBlock
from verifier_service.estimates import AcceptanceEstimates, Floats
from verifier_service.messages import DraftBlock


@dataclass(frozen=True, slots=True)
class Offer:
    """The block chosen for candidate `index`: `survival` [K] is 0 from `length` on."""

    index: int
    sequence_id: int
    block: DraftBlock
    survival: Floats
    length: int


def offers(
    candidates: Sequence[Candidate],
    ceiling: int,
    estimates: AcceptanceEstimates,
    choose: ChooseBlock,
) -> list[Offer]:
    """Offers of the candidates that have a block and may use it, in the candidates' order."""
    owners: list[int] = []
    blocks: list[DraftBlock] = []
    lengths: list[int] = []
    for index, candidate in enumerate(candidates):
        most = 0 if candidate.opted_out else min(candidate.limit, ceiling)
        if most <= 0:
            continue
        for block in candidate.blocks:
            length = min(len(block.token_ids), most)
            if length > 0:
                owners.append(index)
                blocks.append(block)
                lengths.append(length)
    if not blocks:
        return []
    several = len(blocks) > 1 and any(a == b for a, b in pairwise(owners))
    survivals = estimates.survivals(
        blocks,
        lengths,
        [candidates[i].sequence_id for i in owners],
        [candidates[i].greedy for i in owners],
        optimistic=several,
    )
    # Optimism about what is little known makes every proposer get its tries.
    hopes = survivals.optimistic.tolist() if several else []
    result: list[Offer] = []
    start = 0
    for end in range(1, len(owners) + 1):
        if end < len(owners) and owners[end] == owners[start]:
            continue
        row = start
        if end - start > 1:
            row += choose(blocks[start:end], hopes[start:end])
        owner = owners[start]
        result.append(
            Offer(
                owner,
                candidates[owner].sequence_id,
                blocks[row],
                survivals.mean[row],
                lengths[row],
            )
        )
        start = end
    return result
