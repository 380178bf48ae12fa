"""How likely each draft token is to survive verification, learnt from rounds.

Knows proposers' names, positions, match lengths, confidences and outcomes; never reads a draft
token's id (DESIGN: selection must not peek) and knows nothing of time. What is counted, and how
finely, is `acceptance_cells.py`'s; `offsets.py` adds how each proposer does lately and on each
sequence.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from outrider.records import record
from verifier_service.acceptance_cells import (
    CONFIDENCE_EDGES,
    MATCH_EDGES,
    MATCHES,
    Group,
    Total,
)
from verifier_service.messages import DraftBlock, QForm
from verifier_service.offsets import Key, Offsets

# Every so many steps all cells but the coarsest fade, so that what is not tried any more (a
# position that looked bad once) is in the end guessed from its kin again.
_FADE_STEPS = 16
# What a group's freshness keeps when any round is learnt.
_FRESH_KEEP = 0.998
# Trials that a cell remembers: a floor, and so many steps' worth of trials.
_MEMORY, _MEMORY_STEPS = 60.0, 12.0


@record(frozen=True, slots=True)
class Survivals:
    """Chance that each usable draft of each block is accepted, its predecessors included.

    `optimistic` is the same with each sequence's offset one standard deviation up: where little is
    known, it is higher. Lists, not arrays: on four drafts each numpy call takes as long as the
    whole chain.
    """

    mean: list[list[float]]
    optimistic: list[list[float]]


class AcceptanceEstimates:
    """Decayed acceptance statistics for blocks of at most `positions` draft tokens."""

    __slots__ = (
        "_age",
        "_groups",
        "_offsets",
        "_positions",
        "_totals",
    )

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._groups: dict[Key, Group] = {}
        self._totals: dict[str, Total] = {}
        self._offsets = Offsets()
        self._age = 0

    def begin_step(self) -> None:
        """Mark a step: memory spans steps, not trials, so that batches learn as long as one."""
        self._offsets.begin_step()
        self._age += 1
        if self._age % _FADE_STEPS == 0:
            for group in self._groups.values():
                group.fade()

    def survivals(
        self,
        blocks: Sequence[DraftBlock],
        lengths: Sequence[int],
        sequence_ids: Sequence[int],
        keys: Sequence[Key],
        *,
        optimistic: bool = False,
    ) -> Survivals:
        """Estimates for `lengths[i]` drafts of `blocks[i]`, which belongs to `sequence_ids[i]`;
        `keys[i]` is its (proposer, whether decoding is greedy).

        Without `optimistic` its second half is the first.
        """
        odds = []
        # Most blocks of a step are of one proposer and one match length.
        known: dict[tuple[Key, int], list[float]] = {}
        for key, block, length in zip(keys, blocks, lengths, strict=True):
            kind = (key, block.match_length)
            row = known.get(kind)
            if row is None:
                group = self._groups.get(key) or self._new(key)
                row = known[kind] = group.current(bisect_right(MATCH_EDGES, block.match_length))
            odds.append(row[:length])
            if block.confidences and block.q_form is not QForm.SPARSE:
                self._follow(block.confidences, self._groups[key], odds[-1])
        means = self._offsets.values(sequence_ids, keys)
        mean = [_chain(row, offset) for row, offset in zip(odds, means, strict=True)]
        if not optimistic:
            return Survivals(mean, mean)
        variances = self._offsets.variances(sequence_ids, keys)
        hopes = []
        for row, key, value, variance in zip(odds, keys, means, variances, strict=True):
            beyond = math.sqrt(variance + 4.0 / (4.0 + self._groups[key].fresh))
            hopes.append(_chain(row, value + beyond))
        return Survivals(mean, hopes)

    def observe(
        self, sequence_id: int, block: DraftBlock, *, greedy: bool, drafted: int, accepted: int
    ) -> None:
        """Take in that the first `accepted` of `drafted` compared drafts were right.

        Drafts behind the first wrong one were not reached and teach nothing.
        """
        tried = min(drafted, accepted + 1, self._positions)
        if tried <= 0:
            return
        right = min(accepted, tried)
        key = (block.proposer, greedy)
        match = bisect_right(MATCH_EDGES, block.match_length)
        group = self._groups.get(key) or self._new(key)
        # The odds as they were when the step was planned, whatever its other rounds have taught.
        odds = (group.odds[match] or group.build(match))[:tried]
        buckets: list[int] = []
        if block.confidences and block.q_form is not QForm.SPARSE:
            buckets = _buckets(block.confidences, tried)
            for position, bucket in enumerate(buckets):
                row = MATCHES + bucket
                odds[position] = (group.odds[row] or group.build(row))[position]
        self._offsets.learn(sequence_id, key, odds, right)
        memory = _MEMORY + _MEMORY_STEPS * self._offsets.pace
        self._totals[block.proposer].learn(tried, right, memory)
        group.total.learn(tried, right, memory)
        for other in self._groups.values():
            other.fresh *= _FRESH_KEEP
        group.fresh += tried
        group.by_position.learn(tried, right, memory)
        group.rows[match].learn(tried, right, memory)
        for position, bucket in enumerate(buckets):
            success = 1.0 if position < right else 0.0
            group.rows[MATCHES + bucket].count(position, success, memory)
        group.learnt()

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of one sequence only. Unknown ids are ignored."""
        self._offsets.forget(sequence_id)

    def trials(self, proposer: str) -> float:
        """Decayed number of comparisons behind a proposer's estimates."""
        total = self._totals.get(proposer)
        return total.trials if total else 0.0

    def rates(self) -> dict[str, list[float]]:
        """Estimated acceptance by position, given it is reached: {'proposer/greedy': [K rates]}."""
        return {
            f"{proposer}/{'greedy' if greedy else 'sampled'}": [
                round(rate, 4) for rate in group.rates()
            ]
            for (proposer, greedy), group in self._groups.items()
        }

    def _new(self, key: Key) -> Group:
        total = self._totals.setdefault(key[0], Total())
        group = self._groups[key] = Group(self._positions, total)
        return group

    def _follow(self, confidences: Sequence[float], group: Group, odds: list[float]) -> None:
        """Put the odds of a block's confidences in place of those of its match, as far as told."""
        for position, bucket in enumerate(_buckets(confidences, len(odds))):
            odds[position] = group.current(MATCHES + bucket)[position]


def _chain(odds: list[float], offset: float) -> list[float]:
    """Survival of each position from conditional odds moved by log-odds `offset`."""
    scale = math.exp(offset)
    chances = []
    chance = 1.0
    for value in odds:
        scaled = value * scale
        chance *= scaled / (scaled + 1.0)
        chances.append(chance)
    return chances


def _buckets(confidences: Sequence[float], length: int) -> list[int]:
    """Bucket of each confidence (a draft's survival given its predecessors'), `length` at most."""
    return [bisect_right(CONFIDENCE_EDGES, value) for value in confidences[:length]]
