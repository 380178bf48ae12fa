"""Finds out how many drafts of each offered block would have been right.

Knows drafts' ids for as long as it takes to compare them with what was emitted, and hands on
numbers only. A block of eight drafts is answered within eight tokens of its sequence, so a few
steps wait here until all their blocks are. Does not know files or threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from verifier_service.messages import DraftBlock, QForm
from verifier_service.simulation.recording import Offer, RecordedRound, RecordedStep

# Steps that may wait; the oldest are then cut to what is known.
_MOST_WAITING = 1024


@dataclass(frozen=True, slots=True)
class ObservedRound:
    """A round as the engine's thread saw it; `part` has no offers yet."""

    part: RecordedRound
    blocks: tuple[DraftBlock, ...]
    used: DraftBlock | None
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """A step as the engine's thread saw it; `ended` are sequences that ended since the last."""

    step: RecordedStep
    rounds: tuple[ObservedRound, ...]
    ended: tuple[int, ...] = ()


class _Open:
    """A block whose drafts are not all compared yet."""

    __slots__ = ("block", "compared", "position", "settled")

    def __init__(self, block: DraftBlock, position: int) -> None:
        self.block = block
        self.position = position
        self.compared = 0
        self.settled = not block.token_ids

    def compare(self, position: int, tokens: tuple[int, ...]) -> None:
        """Compare with `tokens`, the first of which became id number `position`."""
        ids = self.block.token_ids
        for token in tokens[self.position + self.compared - position :]:
            if self.settled:
                return
            if ids[self.compared] != token:
                self.settled = True
                return
            self.compared += 1
            self.settled = self.compared == len(ids)

    def offer(self) -> Offer:
        """What is known: a wrong draft ends what was right; without one the block is cut here."""
        block = self.block
        offered = len(block.token_ids) if self.settled else self.compared
        return Offer(
            block.proposer,
            offered,
            block.match_length,
            self.compared,
            tuple(block.confidences[:offered]),
        )


class Comparison:
    """Takes observed steps in, gives recorded ones out, in the same order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RecordedStep, list[tuple[RecordedRound, list[_Open]]]]] = deque()
        self._open: dict[int, list[_Open]] = {}

    def take(self, observed: ObservedStep) -> Iterator[RecordedStep]:
        """The steps that are complete with this one."""
        for sequence in observed.ended:
            self._settle(sequence)
        rounds: list[tuple[RecordedRound, list[_Open]]] = []
        for seen in observed.rounds:
            part = seen.part
            own = self._open.setdefault(part.sequence, [])
            blocks = [_Open(block, part.position) for block in _comparable(seen)]
            own.extend(blocks)
            for entry in own:
                entry.compare(part.position, seen.tokens)
            self._open[part.sequence] = [entry for entry in own if not entry.settled]
            rounds.append((_with_use(seen), blocks))
        self._waiting.append((observed.step, rounds))
        while self._waiting and (
            len(self._waiting) > _MOST_WAITING
            or all(entry.settled for _, blocks in self._waiting[0][1] for entry in blocks)
        ):
            yield self._complete()

    def flush(self) -> Iterator[RecordedStep]:
        """The steps that are left, cut to what is known."""
        while self._waiting:
            yield self._complete()
        self._open.clear()

    def _settle(self, sequence: int) -> None:
        for entry in self._open.pop(sequence, ()):
            # Nothing more will be emitted: what was not compared was not offered.
            entry.block = replace(entry.block, token_ids=entry.block.token_ids[: entry.compared])
            entry.settled = True

    def _complete(self) -> RecordedStep:
        step, rounds = self._waiting.popleft()
        return replace(
            step,
            rounds=tuple(
                replace(part, offers=tuple(entry.offer() for entry in blocks))
                for part, blocks in rounds
            ),
        )


def _comparable(seen: ObservedRound) -> list[DraftBlock]:
    """Blocks to compare with the output, which a sampled block with a sparse q may not be.

    Such a draft can be accepted without being what the target would draw, so only what was
    verified of it is known, and what it emitted is its own drafts.
    """
    kept: list[DraftBlock] = []
    for block in seen.blocks:
        if seen.part.greedy or block.q_form is not QForm.SPARSE:
            kept.append(block)
        elif block is seen.used and seen.part.verified:
            kept.append(replace(block, token_ids=block.token_ids[: seen.part.verified]))
    return kept


def _with_use(seen: ObservedRound) -> RecordedRound:
    """The round with the index of its verified block among those that are kept."""
    if seen.used is None or not seen.part.verified:
        return seen.part
    kept = [(block.proposer, block.base_length) for block in _comparable(seen)]
    return replace(seen.part, used=kept.index((seen.used.proposer, seen.used.base_length)))
