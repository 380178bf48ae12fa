"""What one proposer's look-ahead has told of one sequence's round in flight; knows no stream.

Everything here was claimed by a proposer: a false claim costs drafts, never a wrong token.
"""

from __future__ import annotations

from speculation.v1 import proposer_pb2

from verifier_service.messages import DraftBlock

MAX_OUTCOMES = 128
# Named by one sequence's claim.
MAX_NAMED = 4096


class Outlook:
    """Outcomes that have a block, and whether any other outcome could have one.

    Blocks are otherwise unchecked: most are never used. `own` is the block that the proposer itself
    gave behind what is committed.
    """

    __slots__ = ("_complete", "_complete_block", "_excluded", "_named", "_outcomes", "own")

    def __init__(self) -> None:
        self.own: DraftBlock | None = None
        self._outcomes: dict[tuple[int, ...], proposer_pb2.OutcomeBlock] = {}
        self._complete: proposer_pb2.CompleteOutcomes | None = None
        self._complete_block: tuple[int, ...] = ()
        # Its last tokens. Asked about while the device waits, it is told by a thread that does not.
        self._named: frozenset[int] = frozenset()
        # What the claim says of the ids last asked about: a step asks of the same ones three times.
        self._excluded: tuple[tuple[int, ...], bool] | None = None

    def __len__(self) -> int:
        """The number of outcomes that have a block."""
        return len(self._outcomes)

    def clear(self) -> None:
        """The round is over."""
        self.own = None
        self._outcomes.clear()
        self._complete = None

    def asked_again(self) -> None:
        """The same text is asked about again: what is complete is so for the older answer."""
        self._complete = None

    def add(self, outcome: proposer_pb2.OutcomeBlock) -> bool:
        """Keep an outcome's block, the first one of each; False where there are too many."""
        if len(self._outcomes) >= MAX_OUTCOMES:
            return False
        self._outcomes.setdefault(tuple(outcome.outcome_token_ids), outcome)
        return True

    def complete(self, claim: proposer_pb2.CompleteOutcomes) -> bool:
        """All outcomes with a draft are named. False where the claim itself makes no sense."""
        named = len(claim.token_ids)
        if named != len(claim.accepted) or named > MAX_NAMED:
            return False
        self._complete, self._excluded = claim, None
        self._named = frozenset(claim.token_ids)
        self._complete_block = () if self.own is None else self.own.token_ids
        return True

    def block_behind(self, ids: tuple[int, ...]) -> proposer_pb2.OutcomeBlock | None:
        """What was prepared for the round's end with exactly `ids` committed."""
        return self._outcomes.get(ids)

    def rest_behind(self, ids: tuple[int, ...]) -> DraftBlock | None:
        """What is left of the own block where it begins with all of `ids`.

        A chain of drafts stays one behind its beginning, whether that was verified or not.
        """
        own, length = self.own, len(ids)
        if own is None or not self._has_rest(ids):
            return None
        # By place: named arguments take as long again as the object.
        return DraftBlock(
            own.proposer,
            own.base_length + length,
            own.token_ids[length:],
            own.q_form,
            own.q[length:],
            own.match_length + length if own.match_length else 0,
            own.confidences[length:],
            0,
            True,
            own.refused,
        )

    def offers(self, ids: tuple[int, ...]) -> bool | None:
        """Whether there are drafts behind `ids`, not what they are; None where nobody knows."""
        if ids in self._outcomes:
            return True
        if self.excludes(ids):
            return False
        return True if self._has_rest(ids) else None

    def _has_rest(self, ids: tuple[int, ...]) -> bool:
        own, length = self.own, len(ids)
        return own is not None and len(own.token_ids) > length and own.token_ids[:length] == ids

    def excludes(self, ids: tuple[int, ...]) -> bool:
        """Whether the proposer has said that it offers nothing once exactly `ids` are committed."""
        claim = self._complete
        if claim is None or not ids or ids in self._outcomes:
            return False
        if self._excluded is None or self._excluded[0] != ids:
            self._excluded = ids, self._reads_out(claim, ids)
        return self._excluded[1]

    def _reads_out(self, claim: proposer_pb2.CompleteOutcomes, ids: tuple[int, ...]) -> bool:
        """Whether a claim says that `ids`, which have no block, can have none."""
        accepted = len(ids) - 1
        if ids[:accepted] != self._complete_block[:accepted]:
            return False
        token = ids[accepted]
        # Most tokens are in no pair at all.
        return token not in self._named or not any(
            token == other and accepted == kept
            for kept, other in zip(claim.accepted, claim.token_ids, strict=True)
        )
