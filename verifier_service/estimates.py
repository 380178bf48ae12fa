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
# Every so many steps all cells but the coarsest fade by this, so that what is not tried any more
# (a position that looked bad once) is in the end guessed from its kin again.
_FADE_STEPS, _FADE = 16, 0.85
# What a group's freshness keeps when any round is learnt.
_FRESH_KEEP = 0.998
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


class _Cells:
    """Trials and successes of one row of cells, by position; lists, since rounds come singly."""

    __slots__ = ("successes", "trials")

    def __init__(self, positions: int) -> None:
        self.trials = [0.0] * positions
        self.successes = [0.0] * positions

    def count(self, position: int, success: float, memory: float) -> None:
        trials = self.trials[position] + 1.0
        successes = self.successes[position] + success
        if trials > memory:
            successes *= memory / trials
            trials = memory
        self.trials[position] = trials
        self.successes[position] = successes

    def fade(self) -> None:
        self.trials = [_FADE * value for value in self.trials]
        self.successes = [_FADE * value for value in self.successes]


class _Group:
    """Cells of one (proposer, greedy) pair, and the predictions made from them."""

    __slots__ = ("by_confidence", "by_match", "by_position", "fresh", "log_odds", "odds", "total")

    def __init__(self, positions: int) -> None:
        self.total = [0.0, 0.0]
        # Trials that were not long ago, for optimism about what is not tried any more.
        self.fresh = 0.0
        self.by_position = _Cells(positions)
        self.by_match = [_Cells(positions) for _ in range(_MATCHES)]
        self.by_confidence = [_Cells(positions) for _ in range(_CONFIDENCES)]
        # [matches + confidences, K] as of the last rebuild; log_odds in plain lists.
        self.odds: Floats = np.zeros((_MATCHES + _CONFIDENCES, positions))
        self.log_odds: list[list[float]] = []


class AcceptanceEstimates:
    """Decayed acceptance statistics for blocks of at most `positions` draft tokens."""

    __slots__ = ("_age", "_groups", "_offsets", "_positions", "_stale", "_steps", "_totals")

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._groups: dict[Key, _Group] = {}
        self._totals: dict[str, list[float]] = {}
        self._offsets = Offsets()
        # Groups that learnt something since their odds were built.
        self._stale: set[Key] = set()
        self._steps = np.arange(positions)
        self._age = 0

    def begin_step(self) -> None:
        """Mark a step: memory spans steps, not trials, so that batches learn as long as one."""
        self._offsets.begin_step()
        self._age += 1
        if self._age % _FADE_STEPS == 0:
            for key, group in self._groups.items():
                for cells in (group.by_position, *group.by_match, *group.by_confidence):
                    cells.fade()
                self._stale.add(key)

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
        groups = {key: self._current(key) for key in set(keys)}
        rows = [
            groups[key].odds[bisect_right(_MATCH_EDGES, block.match_length)]
            for key, block in zip(keys, blocks, strict=True)
        ]
        odds = np.array(rows).reshape(-1, self._positions)
        for i, block in enumerate(blocks):
            if block.confidences and block.q_form is not QForm.SPARSE:
                table = groups[keys[i]].odds
                for position, bucket in enumerate(_buckets(block.confidences, lengths[i])):
                    odds[i, position] = table[_MATCHES + bucket, position]
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
        group = self._groups.get(key) or self._current(key)
        match = bisect_right(_MATCH_EDGES, block.match_length)
        buckets: list[int] = []
        if block.confidences and block.q_form is not QForm.SPARSE:
            buckets = _buckets(block.confidences, tried)
        predicted = group.log_odds[match][:tried]
        for position, bucket in enumerate(buckets):
            predicted[position] = group.log_odds[_MATCHES + bucket][position]
        self._offsets.learn(sequence_id, key, predicted, right)
        memory = _MEMORY + _MEMORY_STEPS * self._offsets.pace
        for total in (self._totals[block.proposer], group.total):
            share = min(1.0, memory / (total[0] + tried))
            total[0] = (total[0] + tried) * share
            total[1] = (total[1] + right) * share
        for other in self._groups.values():
            other.fresh *= _FRESH_KEEP
        group.fresh += tried
        by_match = group.by_match[match]
        for position in range(tried):
            success = 1.0 if position < right else 0.0
            group.by_position.count(position, success, memory)
            by_match.count(position, success, memory)
        for position, bucket in enumerate(buckets):
            success = 1.0 if position < right else 0.0
            group.by_confidence[bucket].count(position, success, memory)
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
        rates: Floats = _shrunk([group.by_position], np.array(rate))[0]
        return rates

    def _current(self, key: Key) -> _Group:
        """The group of a key, made where new, its odds rebuilt where it learnt something."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(self._positions)
            self._totals.setdefault(key[0], [0.0, 0.0])
        elif key not in self._stale:
            return group
        rates = _shrunk([*group.by_match, *group.by_confidence], self._position_rates(key))
        rates = np.minimum(np.maximum(rates, _LOW), _HIGH)
        group.odds = rates / (1.0 - rates)
        group.log_odds = np.log(group.odds).tolist()
        self._stale.discard(key)
        return group


def _shrunk(cells: Sequence[_Cells], parent: Floats) -> Floats:
    """Rates [cells, K], each drawn to its parent's as far as it lacks trials of its own."""
    successes = np.array([row.successes for row in cells])
    trials = np.array([row.trials for row in cells])
    rates: Floats = (successes + _SHRINK * parent) / (trials + _SHRINK)
    return rates


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
