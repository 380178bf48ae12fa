"""Which drafts of a step are worth their time: one scan over all sequences' drafts.

Knows survival chances and step seconds; knows no blocks, proposers or history.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import sub, truediv

import numpy as np

from outrider.records import record
from verifier_service.costs import CostTable, Floats

# The chances of each row's drafts.
Survivals = Sequence[Sequence[float]]

# Drafts from which on arrays are worth their calls: between two forwards their code is cold, and
# takes five times what it does when it is called over and over.
_MANY = 96


@record(frozen=True, slots=True)
class Admission:
    """The best set of drafts, and what the scan saw.

    `counts` are drafts of each row; `gain` is how much more a second emits with them than without
    (0.2: a fifth more), the wait for drafts being spent either way; `net_gain` compares with a step
    that had not waited at all. `step[n]` is the step's seconds with n drafts, `rate` tokens a
    second at the optimum.
    """

    counts: list[int]
    gain: float
    net_gain: float
    rate: float
    plain_seconds: float
    step: list[float]

    @property
    def drafted(self) -> int:
        return sum(self.counts)

    @property
    def seconds_each(self) -> float:
        """What each of the admitted drafts adds to the step, in seconds; 0 where there is none."""
        drafted = self.drafted
        return (self.step[drafted] - self.step[0]) / drafted if drafted else 0.0


def admit(
    survivals: Survivals,
    costs: CostTable,
    *,
    sequences: int,
    others: int,
    context: int,
    waited: float,
    most: int,
) -> Admission:
    """The drafts that make (sequences + sum of admitted survivals) / step seconds largest.

    `survivals` [rows][drafts] never rise along a row, so the best n slots overall are always
    prefixes of rows: sort once, scan every n, take the best. The scan sees all n because time over
    rows is no smooth curve: one draft may not pay where eight do.

    `others` rows share the step without emitting (prefill). Then the step is paid for them too, and
    a draft is worth its extra time at the rate that decoding alone would have.
    """
    offered = sum(map(len, survivals))
    count = min(offered, most)
    step = costs.curve(sequences + others, count + 1, sequences, context)
    alone = costs.curve(sequences, count + 1, sequences, context) if others else step
    scan = scan_few if offered < _MANY else scan_many
    rate, excess, counts = scan(survivals, sequences, step, alone, waited)
    plain_seconds = float(alone[0])
    return Admission(
        counts=counts,
        gain=excess / sequences,
        net_gain=rate * plain_seconds / sequences - 1.0,
        rate=rate,
        plain_seconds=plain_seconds,
        step=step.tolist(),
    )


def scan_many(
    survivals: Survivals, sequences: int, step: Floats, alone: Floats, waited: float
) -> tuple[float, float, list[int]]:
    """The best rate, tokens won beyond the time at that rate, and the drafts of each row for it.

    `step` and `alone` are seconds of a step with 0, 1, ... drafts, others' rows included and not,
    as far as so many are allowed.
    """
    chances = np.array(list(chain.from_iterable(survivals)))
    # Stable: equal survivals of one row stay in order, so that every cut consists of prefixes.
    order = np.argsort(-chances, kind="stable")[: len(step) - 1]
    emitted = np.empty(len(step))
    emitted[0] = sequences
    emitted[1:] = chances[order]
    np.add.accumulate(emitted, out=emitted)
    rate = float((emitted / (alone + waited)).max())
    worth = emitted - rate * step
    taken = int(worth.argmax())
    lengths = list(map(len, survivals))
    if taken == len(chances):
        counts = lengths
    elif taken:
        owners = np.repeat(np.arange(len(survivals)), lengths)
        counts = np.bincount(owners[order[:taken]], minlength=len(survivals)).tolist()
    else:
        counts = [0] * len(survivals)
    return rate, float(worth[taken] - worth[0]), counts


def scan_few(
    survivals: Survivals, sequences: int, step: Floats, alone: Floats, waited: float
) -> tuple[float, float, list[int]]:
    """The same to the last bit, without arrays."""
    chances = list(chain.from_iterable(survivals))
    # Stable, as above; whole lists at once, since every round of a loop here costs as much.
    order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)
    del order[len(step) - 1 :]
    emitted = list(accumulate(map(chances.__getitem__, order), initial=float(sequences)))
    rate = max(map(truediv, emitted, (alone + waited).tolist()))
    worth = list(map(sub, emitted, (rate * step).tolist()))
    best = max(worth)
    taken = worth.index(best)
    lengths = list(map(len, survivals))
    if taken == len(chances):
        counts = lengths
    else:
        counts = [0] * len(survivals)
        owners = list(chain.from_iterable(map(repeat, range(len(lengths)), lengths)))
        for slot in order[:taken]:
            counts[owners[slot]] += 1
    return rate, best - worth[0], counts
