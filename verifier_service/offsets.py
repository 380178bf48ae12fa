"""How much better or worse a proposer does than its averages: lately, and on one sequence.

Knows predicted log-odds and outcomes; knows no cells, blocks or ids of tokens. Both offsets are
recursive Bayesian logistic fits with forgetting, in log-odds, added to the averages' prediction:
a common one for each proposer ("lately": notices within a step or two that a whole batch changed
its text) and one for each (sequence, proposer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# (proposer, whether decoding is greedy)
Key = tuple[str, bool]

_LIMIT = 5.0
# Common offset: precision of its prior, what it keeps of its information each step, and of its
# value each round.
_COMMON_PRECISION, _COMMON_KEEP, _COMMON_VALUE_KEEP = 2.0, 0.9, 0.98
# Sequence offset: forgetting for each trial, and bounds of its prior's precision. While many are
# tried, the prior follows how much sequences really differ, so that the luckiest of many do not
# look good; the less is tried, the more freely an offset moves.
_KEEP = 0.96
_LEAST_PRECISION, _MOST_PRECISION, _TRIALS_PER_PRECISION = 1.0, 6.0, 4.0
_SPREAD_RATE = 1.0 / 256.0
_PACE_RATE = 1.0 / 16.0
# What a sequence's offset keeps of its information when another proposer's block was verified.
_UNUSED_KEEP = 0.995
_MAX_SEQUENCES = 8192


@dataclass(slots=True)
class _Offset:
    """Log-odds, and the information (inverse variance) that rounds gave about them."""

    value: float = 0.0
    information: float = 0.0


class Offsets:
    """Offsets of all proposers and live sequences."""

    __slots__ = ("_by_sequence", "_common", "_pace", "_prior", "_spread", "_trials")

    def __init__(self) -> None:
        self._common: dict[Key, _Offset] = {}
        self._by_sequence: dict[int, dict[Key, _Offset]] = {}
        # Trials of this step and their decayed average.
        self._trials = 0.0
        self._pace = 0.0
        # Decayed mean of sequence offsets' squares beyond what chance explains.
        self._spread = 1.0
        # Precision of a sequence offset's prior in this step.
        self._prior = _LEAST_PRECISION

    @property
    def pace(self) -> float:
        """Drafts that reached a verdict in a step, on average over the last few steps."""
        return self._pace

    def begin_step(self) -> None:
        self._pace += _PACE_RATE * (self._trials - self._pace)
        self._trials = 0.0
        most = min(_MOST_PRECISION, self._pace / _TRIALS_PER_PRECISION)
        self._prior = max(_LEAST_PRECISION, min(most, 1.0 / max(self._spread, 1e-3)))
        for common in self._common.values():
            common.information *= _COMMON_KEEP

    def values(self, sequence_ids: Sequence[int], keys: Sequence[Key]) -> list[float]:
        """Log-odds to add for each sequence's block of that proposer."""
        common = {key: offset.value for key, offset in self._common.items()}
        mine = self._by_sequence
        return [
            common.get(key, 0.0) + (mine[i][key].value if i in mine and key in mine[i] else 0.0)
            for i, key in zip(sequence_ids, keys, strict=True)
        ]

    def variances(self, sequence_ids: Sequence[int], keys: Sequence[Key]) -> list[float]:
        """Variance of each sequence's own part."""
        mine, prior = self._by_sequence, self._prior
        return [
            1.0 / (prior + (mine[i][key].information if i in mine and key in mine[i] else 0.0))
            for i, key in zip(sequence_ids, keys, strict=True)
        ]

    def learn(self, sequence_id: int, key: Key, odds: Sequence[float], right: int) -> None:
        """Take in a round: acceptance odds by the averages for each draft that was reached, the
        first `right` of which were accepted."""
        self._trials += len(odds)
        common = self._common.get(key)
        if common is None:
            common = self._common[key] = _Offset()
        mine = self._by_sequence.get(sequence_id)
        own = mine.get(key) if mine is not None else None
        if mine is None or own is None:
            mine = self._add(sequence_id, key)
            own = mine[key]
        prior = self._prior
        pull = prior * (1.0 - _KEEP)
        lately, seen = common.value, common.information
        value, information = own.value, own.information
        for position, base in enumerate(odds):
            chance = 1.0 / (1.0 + math.exp(-lately - value) / base)
            surprise = (1.0 if position < right else 0.0) - chance
            known = chance * (1.0 - chance)
            information = information * _KEEP + known
            value += (surprise - pull * value) / (prior + information)
            if not -_LIMIT <= value <= _LIMIT:
                value = math.copysign(_LIMIT, value)
            seen += known
            lately += surprise / (_COMMON_PRECISION + seen)
            if not -_LIMIT <= lately <= _LIMIT:
                lately = math.copysign(_LIMIT, lately)
        own.value, own.information = value, information
        # The averages follow, so the common part may give back what they have taken over.
        common.value, common.information = lately * _COMMON_VALUE_KEEP, seen
        by_chance = information / (prior + information) ** 2
        self._spread += _SPREAD_RATE * (value * value - by_chance - self._spread)
        if len(mine) > 1:
            for name, other in mine.items():
                if name != key:
                    other.information *= _UNUSED_KEEP

    def forget(self, sequence_id: int) -> None:
        """Drop one sequence's offsets. Unknown ids are ignored."""
        self._by_sequence.pop(sequence_id, None)

    def _add(self, sequence_id: int, key: Key) -> dict[Key, _Offset]:
        if sequence_id not in self._by_sequence:
            if len(self._by_sequence) >= _MAX_SEQUENCES:
                del self._by_sequence[next(iter(self._by_sequence))]
            self._by_sequence[sequence_id] = {}
        mine = self._by_sequence[sequence_id]
        mine[key] = _Offset()
        return mine
