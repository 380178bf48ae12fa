"""Which drafts of a step are worth their time: one scan over all sequences' drafts.

Knows survival chances and step seconds; knows no blocks, proposers or history.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.records import record
from verifier_service.costs import CostTable, Floats

# Drafts from which on arrays are worth their calls: a scan of 20 takes 8 µs either way.
_MANY = 20


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
    survivals: Sequence[Sequence[float]],
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
    chances: list[float] = []
    owners: list[int] = []
    for row, survival in enumerate(survivals):
        chances.extend(survival)
        owners.extend([row] * len(survival))
    # Stable: equal survivals of one row stay in order, so that every cut consists of prefixes.
    order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)[:most]
    ranked = [chances[slot] for slot in order]
    step = costs.curve(sequences + others, len(ranked) + 1, sequences, context)
    alone = costs.curve(sequences, len(ranked) + 1, sequences, context) if others else step
    scan = scan_few if len(ranked) < _MANY else scan_many
    rate, taken, excess = scan(ranked, sequences, step, alone, waited)
    counts = [0] * len(survivals)
    for slot in order[:taken]:
        counts[owners[slot]] += 1
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
    ranked: list[float], sequences: int, step: Floats, alone: Floats, waited: float
) -> tuple[float, int, float]:
    """The best rate, how many drafts are worth their time at it, and tokens won beyond that time.

    `ranked` are survivals from the best on; `step` and `alone` [len(ranked) + 1] seconds of a step
    with so many of them, others' rows included and not.
    """
    emitted = np.empty(len(ranked) + 1)
    emitted[0] = sequences
    emitted[1:] = ranked
    np.add.accumulate(emitted, out=emitted)
    rate = float((emitted / (alone + waited)).max())
    worth = emitted - rate * step
    taken = int(worth.argmax())
    return rate, taken, float(worth[taken] - worth[0])


def scan_few(
    ranked: list[float], sequences: int, step: Floats, alone: Floats, waited: float
) -> tuple[float, int, float]:
    """The same to the last bit, without arrays."""
    total = float(sequences)
    emitted = [total]
    for chance in ranked:
        total += chance
        emitted.append(total)
    rate = max(
        tokens / (seconds + waited) for tokens, seconds in zip(emitted, alone.tolist(), strict=True)
    )
    worth = [
        tokens - rate * seconds for tokens, seconds in zip(emitted, step.tolist(), strict=True)
    ]
    best = max(worth)
    return rate, worth.index(best), best - worth[0]
