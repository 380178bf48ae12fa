"""Takes the look-ahead that one proposer pushes: what is current is kept, the rest counted.

Knows one stream's mirrors; does not know which outcome comes true, nor whether a block is sound.
"""

from __future__ import annotations

from speculation.v1 import proposer_pb2

from verifier_service.proposer_handshake import ProposerLimits
from verifier_service.proposer_mirror import Mirror, Mirrors
from verifier_service.proposer_outlook import MAX_NAMED, MAX_OUTCOMES
from verifier_service.proposer_state import ProposerRecord

MAX_LOOKAHEAD_BYTES = 4 * 1024 * 1024


class LookaheadReader:
    """Puts outcomes and claims where the next step's outcome is looked up."""

    def __init__(self, limits: ProposerLimits, mirrors: Mirrors, record: ProposerRecord) -> None:
        self._limits = limits
        self._mirrors = mirrors
        self._record = record

    def take(self, lookahead: proposer_pb2.Lookahead, *, late: bool, answered: bool) -> None:
        """Take one message, whatever it is.

        `late`: the next step was sent before it arrived, which is nobody's fault. `answered`: the
        answer to its step is here; without it the own block behind a claim is not known.
        """
        if not self._limits.lookahead:
            self._record.drop(
                "unexpected_lookahead",
                "look-ahead from a proposer that announced none",
                max(1, len(lookahead.blocks)),
            )
            return
        # Outcomes are kept as they came, so a message bounds what its parts hold in memory.
        if lookahead.ByteSize() > MAX_LOOKAHEAD_BYTES:
            self._record.drop(
                "too_large",
                f"{lookahead.ByteSize()} bytes of outcomes",
                max(1, len(lookahead.blocks)),
            )
            return
        for outcome in lookahead.blocks:
            self._take_outcome(outcome, late)
        if answered:
            for claim in lookahead.complete:
                self._take_complete(claim, late)

    def _take_outcome(self, outcome: proposer_pb2.OutcomeBlock, late: bool) -> None:
        block = outcome.block
        mirror = self._mirrors.get(block.sequence_id)
        if mirror is None or not _is_current(block.epoch, outcome.base_length, mirror):
            if late:
                self._record.lookahead_late += 1
            else:
                self._record.drop("stale_lookahead", f"for sequence {block.sequence_id}")
        elif not mirror.outlook.add(outcome):
            self._record.drop("too_many_outcomes", f"more than {MAX_OUTCOMES} for one sequence")

    def _take_complete(self, claim: proposer_pb2.CompleteOutcomes, late: bool) -> None:
        mirror = self._mirrors.get(claim.sequence_id)
        if mirror is None or not _is_current(claim.epoch, claim.base_length, mirror):
            if not late:
                self._record.drop("stale_lookahead", f"for sequence {claim.sequence_id}")
        elif not mirror.outlook.complete(claim):
            self._record.drop(
                "bad_complete",
                f"{len(claim.accepted)} positions and {len(claim.token_ids)} ids of outcomes; "
                f"they must be as many, at most {MAX_NAMED}",
            )


def _is_current(epoch: int, base_length: int, mirror: Mirror) -> bool:
    return not mirror.opening and epoch == mirror.epoch and base_length == mirror.sent
