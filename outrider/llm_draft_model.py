"""A draft model in this process: it drafts for all sequences of a step, on the engine's thread.

Knows the scheduler's view of a sequence and what a batching method wants to be told; knows neither
transport nor deadline. Importing this imports torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from outrider.config import SpeculativeConfig
from outrider.draft_models import Placement, draft_model_settings
from outrider.errors import InputError
from outrider.llm_proposers import count_fault
from proposer_service.draft_model.loading import load_draft_model
from proposer_service.draft_model.proposer import DraftModelProposer
from proposer_service.proposers.base import Draft
from proposer_service.proposers.batch import TargetSampling, Wanted
from verifier_service.messages import DraftBlock, QForm, RejectionRule, SequenceView, SparseRow

logger = logging.getLogger(__name__)


class LocalDraftModel:
    """One draft model under the name that metrics and requests know it by: a `Local`.

    `rule` is how the target accepts drafts. A forward that fails costs its drafts, never a request.
    """

    def __init__(
        self,
        name: str,
        proposer: DraftModelProposer,
        max_draft_tokens: int,
        *,
        rule: RejectionRule,
        context_limit: int,
        vocabulary_fingerprint: str = "",
    ) -> None:
        self.name = name
        self.method = "draft_model"
        self.vocabulary_fingerprint = vocabulary_fingerprint
        self.draft_blocks = 0
        self.faults = 0
        self._proposer = proposer
        self._max_draft_tokens = max_draft_tokens
        self._coupled = rule is RejectionRule.COUPLED
        self._context_limit = context_limit
        # How many ids of each open sequence it knows.
        self._told: dict[int, int] = {}
        self._asked: list[tuple[SequenceView, int]] = []

    @classmethod
    def load(
        cls,
        name: str,
        config: SpeculativeConfig,
        placement: Placement,
        *,
        rule: RejectionRule,
        max_sequences: int,
    ) -> LocalDraftModel:
        """Load the model of a config. Raises InputError where it cannot be used."""
        settings = draft_model_settings(config, placement)
        if settings is None:
            raise InputError(f"method {config.method!r} loads no model")
        loaded = load_draft_model(settings, max_sequences)
        logger.info("draft model ready %s", loaded.description)
        return cls(
            name,
            loaded.proposer,
            config.num_speculative_tokens,
            rule=rule,
            context_limit=loaded.context_limit,
            vocabulary_fingerprint=loaded.vocabulary_fingerprint,
        )

    def send(self, views: Sequence[SequenceView]) -> None:
        """See `Local.send`; nothing is drafted yet, as nobody may wait for it."""
        self._asked = []
        for view in views:
            try:
                self._tell(view)
            except Exception:
                self._fail([view.sequence_id])
                continue
            room = self._context_limit - len(view.ids)
            wanted = min(view.max_draft_tokens, self._max_draft_tokens, room)
            if wanted > 0:
                self._asked.append((view, wanted))

    def collect(self, *, wait: bool) -> dict[int, DraftBlock]:
        """See `Local.collect`."""
        asked, self._asked = self._asked, []
        if not asked or not wait:
            return {}
        begun = time.perf_counter_ns()
        try:
            drafts = self._draft([Wanted(view.sequence_id, most) for view, most in asked])
        except Exception:
            # One forward served all of them: none is known to be well.
            self._fail([view.sequence_id for view, _ in asked])
            return {}
        took = time.perf_counter_ns() - begun
        blocks = {
            view.sequence_id: DraftBlock(
                proposer=self.name,
                base_length=len(view.ids),
                token_ids=draft.ids,
                q_form=QForm.SPARSE if draft.q else QForm.ONE_HOT,
                q=tuple(SparseRow(row.token_ids, row.masses) for row in draft.q),
                match_length=draft.match_length,
                confidences=draft.confidences,
                draft_ns=took,
            )
            for (view, _), draft in zip(asked, drafts, strict=True)
            if draft.ids
        }
        self.draft_blocks += len(blocks)
        return blocks

    def close(self, sequence_id: int, finished: bool) -> None:
        """See `Local.close`."""
        if self._told.pop(sequence_id, None) is None:
            return
        try:
            self._proposer.close(sequence_id, finished)
        except Exception:
            count_fault(self, sequence_id)

    def settle(self) -> None:
        """Read one piece of the prompts that no draft waited for: a step is held up no longer."""
        try:
            next(iter(self._proposer.catch_up()), None)
        except Exception:
            self._fail(list(self._told))

    def shut_down(self) -> None:
        """Release the model's memory."""
        self._proposer.shut_down()

    def _tell(self, view: SequenceView) -> None:
        sequence_id, known = view.sequence_id, self._told.get(view.sequence_id)
        self._told[sequence_id] = len(view.ids)
        if known is not None:
            if known < len(view.ids):
                self._proposer.extend(sequence_id, view.ids[known:])
            return
        self._proposer.open(sequence_id, view.ids[:], view.prompt_length, view.cache_salt)
        sampling = view.sampling
        self._proposer.heed(
            sequence_id,
            TargetSampling(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                seed=sampling.seed,
                coupled=self._coupled,
                takes_q=True,
            ),
        )

    def _draft(self, wanted: Sequence[Wanted]) -> list[Draft]:
        pieces = self._proposer.propose_many(wanted)
        while True:
            try:
                next(pieces)
            except StopIteration as done:
                drafts: list[Draft] = done.value
                return drafts

    def _fail(self, sequence_ids: Sequence[int]) -> None:
        """Forget sequences that it did not take; they are opened again at their next step."""
        for sequence_id in sequence_ids:
            count_fault(self, sequence_id)
            self.close(sequence_id, finished=False)
