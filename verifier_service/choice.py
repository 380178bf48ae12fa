"""Which proposer's block a sequence gets verified, where several offer one.

Knows the blocks and the estimated survival of their drafts; not the cost of a step, and never the
ids inside (a choice that looked at sampled ids would change the output's distribution). Replace
the policy by passing another function of this shape to the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verifier_service.messages import DraftBlock

# (blocks of one sequence, survival of each block's drafts) -> index of the block to verify.
ChooseBlock = Callable[[Sequence[DraftBlock], Sequence[Sequence[float]]], int]


def best_block(blocks: Sequence[DraftBlock], survivals: Sequence[Sequence[float]]) -> int:
    """The block from which most drafts are expected to be accepted.

    `survivals[i][j]` estimates that drafts 0..j of block i are all accepted. Equal blocks: the
    longer match, then the first.
    """
    best, best_key = 0, (-1.0, -1)
    for index, (block, survival) in enumerate(zip(blocks, survivals, strict=True)):
        key = (sum(survival), block.match_length)
        if key > best_key:
            best, best_key = index, key
    return best
