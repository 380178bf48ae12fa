"""Which drafts of a step are worth their time: one scan over all sequences' drafts.

Knows survival chances and step seconds; knows no blocks, proposers or history.
"""

from __future__ import annotations

import numpy as np

from outrider.records import record
from verifier_service.costs import CostTable, Floats


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
    step: Floats

    @property
    def drafted(self) -> int:
        return sum(self.counts)

    @property
    def seconds_each(self) -> float:
        """What each of the admitted drafts adds to the step, in seconds; 0 where there is none."""
        drafted = self.drafted
        return float(self.step[drafted] - self.step[0]) / drafted if drafted else 0.0


def admit(
    survivals: Floats,
    costs: CostTable,
    *,
    sequences: int,
    others: int,
    context: int,
    waited: float,
    most: int,
) -> Admission:
    """The drafts that make (sequences + sum of admitted survivals) / step seconds largest.

    `survivals` [rows, K] never rise along a row and are 0 where there is no draft,
    so the best n slots overall are always prefixes of rows: sort once, scan every n, take
    the best. The scan sees all n because time over rows is no smooth curve: one draft may not pay
    where eight do.

    `others` rows share the step without emitting (prefill). Then the step is paid for them too, and
    a draft is worth its extra time at the rate that decoding alone would have.
    """
    slots = survivals.reshape(-1)
    width = survivals.shape[1]
    # Stable: equal survivals of one row stay in order, so that every cut consists of prefixes.
    order = np.argsort(-slots, kind="stable")
    order = order[: min(most, int(np.count_nonzero(slots)))]
    emitted = np.empty(len(order) + 1)
    emitted[0] = sequences
    emitted[1:] = slots[order]
    np.add.accumulate(emitted, out=emitted)
    step = costs.curve(sequences + others, len(emitted), sequences, context)
    alone = costs.curve(sequences, len(emitted), sequences, context) if others else step
    rate = float((emitted / (alone + waited)).max())
    worth = emitted - rate * step
    taken = int(worth.argmax())
    plain_seconds = float(alone[0])
    return Admission(
        counts=np.bincount(order[:taken] // width, minlength=len(survivals)).tolist(),
        gain=float(worth[taken] - worth[0]) / sequences,
        net_gain=rate * plain_seconds / sequences - 1.0,
        rate=rate,
        plain_seconds=plain_seconds,
        step=step,
    )
