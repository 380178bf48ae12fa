"""How likely each draft token is to survive verification, learnt from rounds.

Knows proposers' names, positions, match lengths, confidences and outcomes; never reads a draft
token's id (DESIGN: selection must not peek) and knows nothing of time.

A cell holds a decayed Beta posterior of "accepted, given that the drafts before it were". Cells
form a ladder from coarse to fine; each shrinks to the one above it, so a fine cell speaks only as
far as it has evidence:

    prior -> proposer -> (+ greedy) -> (+ position) -> (+ match length) or (+ confidence)

On top, each (sequence, proposer) carries an offset in log-odds: text that suits a proposer less or
more than its average. It is a recursive Bayesian logistic fit with forgetting.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verifier_service.messages import DraftBlock, QForm

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
# Trials that a cell remembers.
_MEMORY = 80.0
_KEEP = 1.0 - 1.0 / _MEMORY
# A sequence's offset: prior precision in log-odds^-2, forgetting for each trial, and its bounds.
_OFFSET_PRECISION = 1.0
_OFFSET_KEEP = 0.96
_OFFSET_LIMIT = 5.0
_MAX_SEQUENCES = 8192
_LOW, _HIGH = 0.002, 0.995


@dataclass(frozen=True, slots=True)
class Survivals:
    """Chance that each draft of each block is accepted, its predecessors included: [blocks, K].

    0 beyond a block's usable length. `optimistic` is the same with each sequence's offset one
    standard deviation up: where little is known, it is higher.
    """

    mean: Floats
    optimistic: Floats


@dataclass(slots=True)
class _Offset:
    value: float = 0.0
    precision: float = _OFFSET_PRECISION


class _Group:
    """Cells of one (proposer, greedy) pair; index 0 of the first axis is trials, 1 is successes."""

    __slots__ = ("by_confidence", "by_match", "by_position", "total")

    def __init__(self, positions: int) -> None:
        self.total = [0.0, 0.0]
        self.by_position = np.zeros((2, positions))
        self.by_match = np.zeros((2, _MATCHES, positions))
        self.by_confidence = np.zeros((2, _CONFIDENCES, positions))


class AcceptanceEstimates:
    """Decayed acceptance statistics for blocks of at most `positions` draft tokens."""

    __slots__ = ("_groups", "_odds", "_offsets", "_positions", "_stale", "_steps", "_totals")

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._groups: dict[tuple[str, bool], _Group] = {}
        self._totals: dict[str, list[float]] = {}
        self._offsets: dict[int, dict[str, _Offset]] = {}
        # Odds [matches, K] and [confidences, K] of each group, rebuilt when it learnt something.
        self._odds: dict[tuple[str, bool], tuple[Floats, Floats]] = {}
        self._stale: set[tuple[str, bool]] = set()
        self._steps = np.arange(positions)

    def survivals(
        self,
        blocks: Sequence[DraftBlock],
        lengths: Sequence[int],
        sequence_ids: Sequence[int],
        greedy: Sequence[bool],
        *,
        optimistic: bool = False,
    ) -> Survivals:
        """Estimates for `lengths[i]` drafts of `blocks[i]`, which belongs to `sequence_ids[i]`.

        Without `optimistic` its second half is the first.
        """
        odds = np.empty((len(blocks), self._positions))
        means, bounds = [], []
        none: dict[str, _Offset] = {}
        for i, block in enumerate(blocks):
            key = (block.proposer, greedy[i])
            if key in self._stale or key not in self._odds:
                self._rebuild(key)
            by_match, by_confidence = self._odds[key]
            odds[i] = by_match[bisect_right(_MATCH_EDGES, block.match_length)]
            if block.confidences and block.q_form is not QForm.SPARSE:
                for position, bucket in enumerate(_buckets(block.confidences, lengths[i])):
                    odds[i, position] = by_confidence[bucket, position]
            offset = self._offsets.get(sequence_ids[i], none).get(block.proposer)
            value, precision = (
                (offset.value, offset.precision) if offset else (0.0, _OFFSET_PRECISION)
            )
            means.append(value)
            bounds.append(value + 1.0 / math.sqrt(precision))
        inside = self._steps < np.array(lengths)[:, None]
        mean = _chain(odds, means, inside)
        return Survivals(mean, _chain(odds, bounds, inside) if optimistic else mean)

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
        predicted = self._before_learning(sequence_id, block, key, tried)
        group = self._groups[key]
        _count(self._totals[block.proposer], tried, right)
        _count(group.total, tried, right)
        match = bisect_right(_MATCH_EDGES, block.match_length)
        for cells in (group.by_position, group.by_match[:, match]):
            cells[:, :tried] *= _KEEP
            cells[0, :tried] += 1.0
            cells[1, :right] += 1.0
        if block.confidences and block.q_form is not QForm.SPARSE:
            for position, bucket in enumerate(_buckets(block.confidences, tried)):
                cell = group.by_confidence[:, bucket, position]
                cell *= _KEEP
                cell += (1.0, 1.0 if position < right else 0.0)
        self._stale.add(key)
        self._learn_offset(sequence_id, block.proposer, predicted, right)

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of one sequence only. Unknown ids are ignored."""
        self._offsets.pop(sequence_id, None)

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

    def _position_rates(self, key: tuple[str, bool]) -> Floats:
        total, group = self._totals[key[0]], self._groups[key]
        rate = (total[1] + _PRIOR_WEIGHT * _PRIOR_MEAN) / (total[0] + _PRIOR_WEIGHT)
        rate = (group.total[1] + _SHRINK * rate) / (group.total[0] + _SHRINK)
        cells = group.by_position
        rates: Floats = (cells[1] + _SHRINK * rate) / (cells[0] + _SHRINK)
        return rates

    def _rebuild(self, key: tuple[str, bool]) -> None:
        if key not in self._groups:
            self._groups[key] = _Group(self._positions)
            self._totals.setdefault(key[0], [0.0, 0.0])
        group, parent = self._groups[key], self._position_rates(key)
        self._odds[key] = (_odds(group.by_match, parent), _odds(group.by_confidence, parent))
        self._stale.discard(key)

    def _before_learning(
        self, sequence_id: int, block: DraftBlock, key: tuple[str, bool], tried: int
    ) -> list[float]:
        """Log-odds of each tried position as the cells saw them, without the sequence's offset."""
        if key not in self._odds:
            self._rebuild(key)
        by_match, by_confidence = self._odds[key]
        row = by_match[bisect_right(_MATCH_EDGES, block.match_length), :tried].tolist()
        if block.confidences and block.q_form is not QForm.SPARSE:
            for position, bucket in enumerate(_buckets(block.confidences, tried)):
                row[position] = float(by_confidence[bucket, position])
        return [math.log(odds) for odds in row]

    def _learn_offset(
        self, sequence_id: int, proposer: str, predicted: list[float], right: int
    ) -> None:
        mine = self._offsets.get(sequence_id)
        if mine is None:
            if len(self._offsets) >= _MAX_SEQUENCES:
                del self._offsets[next(iter(self._offsets))]
            mine = self._offsets[sequence_id] = {}
        offset = mine.setdefault(proposer, _Offset())
        for position, base in enumerate(predicted):
            chance = 1.0 / (1.0 + math.exp(-base - offset.value))
            offset.precision = max(
                _OFFSET_PRECISION, offset.precision * _OFFSET_KEEP + chance * (1.0 - chance)
            )
            outcome = 1.0 if position < right else 0.0
            moved = offset.value + (outcome - chance) / offset.precision
            offset.value = min(max(moved, -_OFFSET_LIMIT), _OFFSET_LIMIT)
        # What was not seen lately is known less well.
        for name, other in mine.items():
            if name != proposer:
                other.precision = max(_OFFSET_PRECISION, other.precision * 0.995)


def _count(total: list[float], tried: int, right: int) -> None:
    keep = _KEEP**tried
    total[0] = total[0] * keep + tried
    total[1] = total[1] * keep + right


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
