"""Reads one proposer's draft blocks as the scheduler takes them; what is unsound is counted.

Knows what was agreed with the proposer; whether a block is current is decided elsewhere.
"""

from __future__ import annotations

from speculation.v1 import proposer_pb2

from verifier_service.draft_checks import BadBlockError, check_block
from verifier_service.messages import DraftBlock
from verifier_service.proposer_handshake import ProposerLimits
from verifier_service.proposer_state import ProposerRecord


class BlockReader:
    """`name` is the proposer's name here; ids must be below `vocabulary_size`."""

    def __init__(
        self, limits: ProposerLimits, name: str, vocabulary_size: int, record: ProposerRecord
    ) -> None:
        self._limits = limits
        self._name = name
        self._vocabulary_size = vocabulary_size
        self._record = record

    def read(self, block: proposer_pb2.DraftBlock, max_draft_tokens: int) -> DraftBlock | None:
        """A block of an answer; None where it is not sound, which is counted."""
        try:
            return self._check(block, max_draft_tokens, lookahead=False)
        except BadBlockError as error:
            self._record.drop(error.reason, str(error))
            return None

    def read_ahead(
        self, outcome: proposer_pb2.OutcomeBlock | None, *, used: bool
    ) -> DraftBlock | None:
        """The block of an outcome that came true, where it is sound and not empty.

        Only where it is `used` is it counted what is wrong with it.
        """
        if outcome is None:
            return None
        block = outcome.block
        try:
            if block.base_length != outcome.base_length + len(outcome.outcome_token_ids):
                raise BadBlockError("bad_outcome", "base and outcome do not add up")
            checked = self._check(block, self._limits.max_draft_tokens, lookahead=True)
        except BadBlockError as error:
            if used:
                self._record.drop(error.reason, str(error))
            return None
        return checked if checked.token_ids else None

    def _check(
        self, block: proposer_pb2.DraftBlock, max_draft_tokens: int, *, lookahead: bool
    ) -> DraftBlock:
        return check_block(
            block,
            proposer=self._name,
            max_draft_tokens=max_draft_tokens,
            vocabulary_size=self._vocabulary_size,
            q_forms=self._limits.q_forms,
            lookahead=lookahead,
        )
