"""How likely each draft token is to survive verification, learnt from rounds.

Knows proposers' names, positions, match lengths, confidences and outcomes; never reads a draft
token's id (DESIGN: selection must not peek) and knows nothing of time.

A cell holds a decayed Beta posterior of "accepted, given that the drafts before it were". Cells
form a ladder from coarse to fine; each shrinks to the one above it, so a fine cell speaks only as
far as it has evidence:

    prior -> proposer -> (+ greedy) -> (+ position) -> (+ match length) or (+ confidence)

`verifier_service/offsets.py` adds how each proposer does lately and on each sequence.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verifier_service.messages import DraftBlock, QForm
from verifier_service.offsets import Key, Offsets

Floats = NDArray[np.float64]

# Match lengths 0 (no meaning), 1, 2, 3-4, 5-8, 9-16, 17 and more.
_MATCH_EDGES = (1, 2, 3, 5, 9, 17)
_MATCHES = len(_MATCH_EDGES) + 1
# Confidence that the draft survives, given its predecessors did; bucket 0 means none was given.
_CONFIDENCE_EDGES = (0.0, 0.3, 0.6, 0.8, 0.95)
_CONFIDENCES = len(_CONFIDENCE_EDGES) + 1

_PRIOR_MEAN = 0.6
_PRIOR_WEIGHT = 2.0
# Pseudo-trials with which a cell believes the cell above it.
_SHRINK = 5.0
# Trials that a cell remembers: a floor, and so many steps' worth of trials.
_MEMORY, _MEMORY_STEPS = 60.0, 12.0
_LOW, _HIGH = 0.002, 0.995


@dataclass(frozen=True, slots=True)
class Survivals:
    """Chance that each draft of each block is accepted, its predecessors included: [blocks, K].

    0 beyond a block's usable length. `optimistic` is the same with each sequence's offset one
    standard deviation up: where little is known, it is higher.
    """

    mean: Floats
    optimistic: Floats


class _Group:
    """Cells of one (proposer, greedy) pair; index 0 of the first axis is trials, 1 is successes."""

    __slots__ = ("by_confidence", "by_match", "by_position", "fresh", "total")

    def __init__(self, positions: int) -> None:
        self.total = [0.0, 0.0]
        # Trials that were not long ago, for optimism about what is not tried any more.
        self.fresh = 0.0
        self.by_position = np.zeros((2, positions))
        self.by_match = np.zeros((2, _MATCHES, positions))
        self.by_confidence = np.zeros((2, _CONFIDENCES, positions))


class AcceptanceEstimates:
    """Decayed acceptance statistics for blocks of at most `positions` draft tokens."""

    __slots__ = ("_groups", "_odds", "_offsets", "_positions", "_stale", "_steps", "_totals")

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._groups: dict[Key, _Group] = {}
        self._totals: dict[str, list[float]] = {}
        self._offsets = Offsets()
        # Odds [matches, K] and [confidences, K] of each group, rebuilt when it learnt something.
        self._odds: dict[Key, tuple[Floats, Floats]] = {}
        self._stale: set[Key] = set()
        self._steps = np.arange(positions)

    def begin_step(self) -> None:
        """Mark a step: memory spans steps, not trials, so that batches learn as long as one."""
        self._offsets.begin_step()

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
        for key in set(keys):
            if key in self._stale or key not in self._odds:
                self._rebuild(key)
        rows = [
            self._odds[key][0][bisect_right(_MATCH_EDGES, block.match_length)]
            for key, block in zip(keys, blocks, strict=True)
        ]
        odds = np.array(rows).reshape(-1, self._positions)
        for i, block in enumerate(blocks):
            if block.confidences and block.q_form is not QForm.SPARSE:
                by_confidence = self._odds[keys[i]][1]
                for position, bucket in enumerate(_buckets(block.confidences, lengths[i])):
                    odds[i, position] = by_confidence[bucket, position]
        means = self._offsets.values(sequence_ids, keys)
        inside = self._steps < np.array(lengths)[:, None]
        mean = _chain(odds, means, inside)
        if not optimistic:
            return Survivals(mean, mean)
        bounds = [
            value + math.sqrt(variance + 4.0 / (4.0 + self._groups[key].fresh))
            for value, variance, key in zip(
                means, self._offsets.variances(sequence_ids, keys), keys, strict=True
            )
        ]
        return Survivals(mean, _chain(odds, bounds, inside))

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
        self._offsets.learn(sequence_id, key, self._predicted(block, key, tried), right)
        group = self._groups[key]
        memory = _MEMORY + _MEMORY_STEPS * self._offsets.pace
        for total in (self._totals[block.proposer], group.total):
            share = min(1.0, memory / (total[0] + tried))
            total[0] = (total[0] + tried) * share
            total[1] = (total[1] + right) * share
        for other in self._groups.values():
            other.fresh *= 0.998
        group.fresh += tried
        match = bisect_right(_MATCH_EDGES, block.match_length)
        for cells in (group.by_position, group.by_match[:, match]):
            cells[0, :tried] += 1.0
            cells[1, :right] += 1.0
            cells[:, :tried] *= np.minimum(1.0, memory / cells[0, :tried])
        if block.confidences and block.q_form is not QForm.SPARSE:
            for position, bucket in enumerate(_buckets(block.confidences, tried)):
                cell = group.by_confidence[:, bucket, position]
                cell += (1.0, 1.0 if position < right else 0.0)
                cell *= min(1.0, memory / float(cell[0]))
        self._stale.add(key)

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of one sequence only. Unknown ids are ignored."""
        self._offsets.forget(sequence_id)

    def trials(self, proposer: str) -> float:
        """Decayed number of comparisons behind a proposer's estimates."""
        total = self._totals.get(proposer)
        return total[0] if total else 0.0

    def rates(self) -> dict[str, list[float]]:
        """Estimated acceptance by position, given it is reached: {'proposer/greedy': [K rates]}."""
        return {
            f"{proposer}/{'greedy' if greedy else 'sampled'}": [
                round(float(rate), 4) for rate in self._position_rates((proposer, greedy))
            ]
            for proposer, greedy in self._groups
        }

    def _position_rates(self, key: Key) -> Floats:
        total, group = self._totals[key[0]], self._groups[key]
        rate = (total[1] + _PRIOR_WEIGHT * _PRIOR_MEAN) / (total[0] + _PRIOR_WEIGHT)
        rate = (group.total[1] + _SHRINK * rate) / (group.total[0] + _SHRINK)
        cells = group.by_position
        rates: Floats = (cells[1] + _SHRINK * rate) / (cells[0] + _SHRINK)
        return rates

    def _rebuild(self, key: Key) -> None:
        if key not in self._groups:
            self._groups[key] = _Group(self._positions)
            self._totals.setdefault(key[0], [0.0, 0.0])
        group, parent = self._groups[key], self._position_rates(key)
        self._odds[key] = (_odds(group.by_match, parent), _odds(group.by_confidence, parent))
        self._stale.discard(key)

    def _predicted(self, block: DraftBlock, key: Key, tried: int) -> list[float]:
        """Log-odds that the cells give each of the first `tried` drafts."""
        if key not in self._odds:
            self._rebuild(key)
        by_match, by_confidence = self._odds[key]
        row = by_match[bisect_right(_MATCH_EDGES, block.match_length), :tried].tolist()
        if block.confidences and block.q_form is not QForm.SPARSE:
            for position, bucket in enumerate(_buckets(block.confidences, tried)):
                row[position] = float(by_confidence[bucket, position])
        return [math.log(odds) for odds in row]


def _odds(cells: Floats, parent: Floats) -> Floats:
    rates = np.clip((cells[1] + _SHRINK * parent) / (cells[0] + _SHRINK), _LOW, _HIGH)
    result: Floats = rates / (1.0 - rates)
    return result


def _chain(odds: Floats, offsets: list[float], inside: NDArray[np.bool_]) -> Floats:
    """Survival of each position from conditional odds [blocks, K] moved by log-odds [blocks]."""
    scaled = odds * np.exp(np.array(offsets))[:, None]
    scaled /= scaled + 1.0
    scaled *= inside
    result: Floats = np.multiply.accumulate(scaled, axis=1)
    return result


def _buckets(confidences: Sequence[float], length: int) -> list[int]:
    """Bucket of each confidence (a draft's survival given its predecessors'), `length` at most."""
    return [bisect_right(_CONFIDENCE_EDGES, value) for value in confidences[:length]]
