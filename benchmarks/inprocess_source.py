"""Proposers called directly, without a process or a clock: a `DraftSource` that is deterministic.

Knows the scheduler's view of a sequence and the proposers' interface; no transport, no deadline,
no look-ahead. Every draft that is asked for arrives in the step that asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proposer_service.proposers.base import Proposer
from verifier_service.messages import DraftBlock, Expected, Foreseen, NoDrafts, SequenceView


class InprocessSource(NoDrafts):
    """Asks the `use`d proposers, all of them for every sequence that names none.

    A proposer follows a sequence from the first step that it is asked in; `send` and `collect`
    are called on the engine's thread.
    """

    def __init__(self, proposers: Mapping[str, Proposer]) -> None:
        self._proposers = dict(proposers)
        self._used = tuple(proposers)
        # (proposer, sequence id) -> how many ids it was told.
        self._told: dict[tuple[str, int], int] = {}
        self._blocks: dict[int, list[DraftBlock]] = {}

    def use(self, names: Sequence[str]) -> None:
        """Ask only these from now on; call it while no request runs."""
        unknown = set(names) - self._proposers.keys()
        if unknown:
            raise ValueError(f"unknown proposers {sorted(unknown)}; known: {list(self._proposers)}")
        self._used = tuple(names)

    def send(self, views: Sequence[SequenceView], closed: Sequence[tuple[int, bool]]) -> None:
        for sequence_id, finished in closed:
            for name in self._proposers:
                if self._told.pop((name, sequence_id), None) is not None:
                    self._proposers[name].close(sequence_id, finished)
        self._blocks = {}
        for view in views:
            blocks = [
                block
                for name in self._used
                if view.only in ("", name) and (block := self._draft(name, view)) is not None
            ]
            if blocks:
                self._blocks[view.sequence_id] = blocks

    def collect(self, *, wait: bool = True) -> dict[int, list[DraftBlock]]:
        blocks, self._blocks = self._blocks, {}
        return blocks

    def foreseen(self, views: Sequence[SequenceView]) -> Foreseen | None:
        return None

    def behind(self, outcomes: Sequence[tuple[int, Sequence[int]]]) -> Expected | None:
        return None

    def _draft(self, name: str, view: SequenceView) -> DraftBlock | None:
        proposer = self._proposers[name]
        key = (name, view.sequence_id)
        told = self._told.get(key)
        if told is None:
            proposer.open(view.sequence_id, view.ids, view.prompt_length, view.cache_salt)
        elif told < len(view.ids):
            proposer.extend(view.sequence_id, view.ids[told:])
        self._told[key] = len(view.ids)
        if view.max_draft_tokens == 0:
            return None
        draft = proposer.propose(view.sequence_id, view.max_draft_tokens)
        if not draft.ids:
            return None
        return DraftBlock(
            proposer=name,
            base_length=len(view.ids),
            token_ids=draft.ids,
            match_length=draft.match_length,
            confidences=draft.confidences,
        )
