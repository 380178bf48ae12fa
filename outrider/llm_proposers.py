"""Proposers called in this process: a verifier's source of drafts without a stream.

Knows the scheduler's view of a sequence and the proposers' interface; knows no transport and no
deadline. Offline they run here and not as child processes: a draft costs tens of microseconds, less
than a message about it, and nothing is left behind when a notebook is closed. A draft model drafts
on the engine's thread, too (llm_draft_model.py): it and the target take turns anyway. No draft can
come late, so that a method which reads one text alone (ngram, or suffix without cached requests)
drafts the same for equal calls, and the rules other than `coupled` are reproducible with a seed,
too. A method that fails costs its drafts, never a request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider.config import SpeculativeConfig
from outrider.serve_plan import proposer_names
from proposer_service.proposers.base import NO_DRAFT, Draft, Proposer
from proposer_service.proposers.long_ngram import ngram_proposer
from proposer_service.proposers.suffix import SuffixProposer
from proposer_service.proposers.suffix_options import SuffixOptions
from verifier_service.messages import DraftBlock, Expected, Foreseen, SequenceView
from verifier_service.proposer_state import LinkState, ProposerState

logger = logging.getLogger(__name__)


class Local(Protocol):
    """One proposer of this process; no call raises."""

    name: str
    method: str
    draft_blocks: int
    faults: int

    def send(self, views: Sequence[SequenceView]) -> None:
        """Learn what is new of sequences."""

    def collect(self, *, wait: bool) -> dict[int, DraftBlock]:
        """Drafts behind what the last `send` told, once; without `wait` only what is there."""

    def close(self, sequence_id: int, finished: bool) -> None:
        """The sequence is over; one that is unknown here is none of ours."""

    def settle(self) -> None:
        """Do what no draft needed."""

    def shut_down(self) -> None:
        """Let go of everything."""


def count_fault(proposer: Local, sequence_id: int | None) -> None:
    """Count the failure that is being handled; a proposer's first one is told in the log."""
    if not proposer.faults:
        logger.exception(
            "proposer %s failed on sequence %s; further failures are only counted",
            proposer.name,
            sequence_id,
        )
    proposer.faults += 1


@dataclass(slots=True)
class LocalProposer:
    """One method under the name that metrics and requests know it by.

    `told` has how many ids of each open sequence it knows.
    """

    name: str
    method: str
    proposer: Proposer
    max_draft_tokens: int
    told: dict[int, int] = field(default_factory=dict)
    draft_blocks: int = 0
    faults: int = 0
    _blocks: dict[int, DraftBlock] = field(default_factory=dict)

    def send(self, views: Sequence[SequenceView]) -> None:
        """See `Local.send`; drafts at once, since that costs less than remembering to."""
        drafts = ((view.sequence_id, self.draft(view)) for view in views)
        self._blocks = {number: block for number, block in drafts if block is not None}

    def collect(self, *, wait: bool) -> dict[int, DraftBlock]:
        """See `Local.collect`."""
        blocks, self._blocks = self._blocks, {}
        return blocks

    def draft(self, view: SequenceView) -> DraftBlock | None:
        """Learn what is new of a sequence; the drafts that are wanted, if there are any."""
        begun = time.perf_counter_ns()
        try:
            draft = self._draft(view)
        except Exception:
            self._fail(view.sequence_id)
            return None
        if not draft.ids:
            return None
        self.draft_blocks += 1
        return DraftBlock(
            proposer=self.name,
            base_length=len(view.ids),
            token_ids=draft.ids,
            match_length=draft.match_length,
            confidences=draft.confidences,
            draft_ns=time.perf_counter_ns() - begun,
        )

    def close(self, sequence_id: int, finished: bool) -> None:
        """The sequence is over; one that is unknown here is none of ours."""
        if self.told.pop(sequence_id, None) is None:
            return
        try:
            self.proposer.close(sequence_id, finished)
        except Exception:
            count_fault(self, sequence_id)

    def settle(self) -> None:
        """Let the method do what no draft needed."""
        try:
            self.proposer.settle()
        except Exception:
            count_fault(self, None)

    def shut_down(self) -> None:
        """There is nothing to end: no stream, no thread."""
        return

    def _draft(self, view: SequenceView) -> Draft:
        sequence_id, known = view.sequence_id, self.told.get(view.sequence_id)
        self.told[sequence_id] = len(view.ids)
        if known is None:
            self.proposer.open(sequence_id, view.ids[:], view.prompt_length, view.cache_salt)
        elif known < len(view.ids):
            self.proposer.extend(sequence_id, view.ids[known:])
        wanted = min(view.max_draft_tokens, self.max_draft_tokens)
        return self.proposer.propose(sequence_id, wanted) if wanted else NO_DRAFT

    def _fail(self, sequence_id: int) -> None:
        """Forget a sequence that the method cannot take; it is opened again at its next step."""
        count_fault(self, sequence_id)
        self.close(sequence_id, finished=False)


class LocalProposers:
    """A `DraftSource` whose answers are there at once; used on the engine's thread but `states`.

    A proposer follows a sequence from the first step in which it is asked.
    """

    def __init__(self, proposers: Sequence[Local]) -> None:
        self._proposers = tuple(proposers)

    @classmethod
    def of(
        cls,
        configs: tuple[SpeculativeConfig, ...],
        load: Callable[[str, SpeculativeConfig], Local] | None = None,
    ) -> LocalProposers:
        """One proposer for each config, named as `outrider serve` names them.

        `load` makes those that have a model, from name and config.
        """
        names = proposer_names(configs)
        return cls(
            [
                load(name, config)
                if load is not None and config.model is not None
                else LocalProposer(
                    name, config.method, _make(config), config.num_speculative_tokens
                )
                for name, config in zip(names, configs, strict=True)
            ]
        )

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        """Tell what became true and draft. `closed`: (id, finished)."""
        for proposer in self._proposers:
            for sequence_id, finished in closed:
                proposer.close(sequence_id, finished)
            # What the last step brought, before anybody reads it.
            proposer.settle()
            proposer.send([view for view in views if view.only in ("", proposer.name)])

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        """The drafts behind the last `send`, by sequence, in the order of the configs."""
        found: dict[int, list[DraftBlock]] = {}
        for proposer in self._proposers:
            for sequence_id, block in proposer.collect(wait=wait).items():
                found.setdefault(sequence_id, []).append(block)
        return found

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        """None: what these proposers would draft is known once they are asked."""
        return None

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        """None: what these proposers would draft is known once they are asked."""
        return None

    @property
    def looks_ahead(self) -> bool:
        """As good as that: they are asked between two steps, and always waited for."""
        return True

    def hush(self) -> None:
        """They say nothing unasked."""

    def listen(self) -> None:
        """They say nothing unasked."""

    def states(self) -> list[ProposerState]:
        """Each proposer at this moment."""
        return [
            ProposerState(
                name=proposer.name,
                method=proposer.method,
                address="",
                state=LinkState.CONNECTED,
                draft_blocks=proposer.draft_blocks,
                faults=proposer.faults,
            )
            for proposer in self._proposers
        ]

    def close(self) -> None:
        """Let go of what the proposers hold."""
        for proposer in self._proposers:
            proposer.shut_down()


def _make(config: SpeculativeConfig) -> Proposer:
    if config.method == "ngram":
        return ngram_proposer(config.prompt_lookup_min, config.prompt_lookup_max)
    return SuffixProposer(
        SuffixOptions(
            max_tree_depth=config.suffix_decoding_max_tree_depth,
            max_cached_requests=config.suffix_decoding_max_cached_requests,
            max_spec_factor=config.suffix_decoding_max_spec_factor,
            min_token_prob=config.suffix_decoding_min_token_prob,
        )
    )
