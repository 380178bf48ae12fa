"""The one block of each sequence that may be verified in a step, with its drafts' chances.

Knows candidates, estimates and the choice between proposers; knows no cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.records import record
from verifier_service.candidates import Candidate
from verifier_service.choice import ChooseBlock
from verifier_service.estimates import AcceptanceEstimates
from verifier_service.messages import DraftBlock, QForm
from verifier_service.offsets import Key


@record(frozen=True, slots=True)
class Offers:
    """One entry for each candidate that has a block and may use it, in the candidates' order.

    `owners` are indices of candidates, `lengths` drafts that may be verified, and `survivals`
    [offers][lengths] the chance that a draft and its predecessors are accepted.
    `teach_unverified` says that blocks which are not verified are compared with the output all
    the same (`Controller.observe_shadow`).
    """

    owners: list[int]
    blocks: list[DraftBlock]
    lengths: list[int]
    survivals: list[list[float]]
    teach_unverified: bool

    def __len__(self) -> int:
        return len(self.owners)

    def first(self, most: int) -> list[int]:
        """Drafts of each offer where the first `most` are verified, whatever they cost."""
        counts = []
        for length in self.lengths:
            counts.append(min(length, most))
            most -= counts[-1]
        return counts


def gather(
    candidates: Sequence[Candidate],
    ceiling: int,
    estimates: AcceptanceEstimates,
    choose: ChooseBlock,
) -> Offers:
    """The offers of a step; `choose` picks where several proposers offer one sequence a block."""
    owners: list[int] = []
    blocks: list[DraftBlock] = []
    lengths: list[int] = []
    ids: list[int] = []
    keys: list[Key] = []
    several = False
    told = True
    for index, candidate in enumerate(candidates):
        if candidate.opted_out or not candidate.blocks:
            continue
        most = candidate.limit if candidate.limit < ceiling else ceiling
        own = 0
        for block in candidate.blocks:
            offered = len(block.token_ids)
            length = offered if offered < most else most
            if length > 0:
                own += 1
                owners.append(index)
                blocks.append(block)
                lengths.append(length)
                ids.append(candidate.sequence_id)
                keys.append((block.proposer, candidate.greedy))
                told = told and (candidate.greedy or block.q_form is not QForm.SPARSE)
        several |= own > 1
    chances = estimates.survivals(blocks, lengths, ids, keys, optimistic=several)
    if not several:
        return Offers(owners, blocks, lengths, chances.mean, told)
    # Optimism about what is little known makes every proposer get its tries.
    rows = _chosen(owners, blocks, chances.optimistic, choose)
    return Offers(
        [owners[row] for row in rows],
        [blocks[row] for row in rows],
        [lengths[row] for row in rows],
        [chances.mean[row] for row in rows],
        told,
    )


def _chosen(
    owners: list[int], blocks: list[DraftBlock], hopes: list[list[float]], choose: ChooseBlock
) -> list[int]:
    """Index of the block to use for each run of equal owners."""
    rows: list[int] = []
    start = 0
    for end in range(1, len(owners) + 1):
        if end < len(owners) and owners[end] == owners[start]:
            continue
        alone = end - start == 1
        rows.append(start if alone else start + choose(blocks[start:end], hopes[start:end]))
        start = end
    return rows
