"""What the attention benchmark measures, and how it shows what it has found.

Knows candidates, contexts as serving has them and times; does not know kernels or cards.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

KV_HEADS, SIZE = 8, 128
SEQUENCES, QUERIES = (1, 8, 32, 128), (1, 5, 9)
SHORTEST, MEAN, LONGEST, EVEN = 40, 344, 1800, 512
# Bytes a microsecond that an H200 was seen to read.
_READS = 4.2e6


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to cut and compile: as shipped, where nothing else is said."""

    name: str
    programs: int = 8
    least_keys: int = 128
    keys: int = 64
    warps: int = 4
    stages: int = 3
    parts: int | None = None
    counted: bool = True
    shipped: bool = False


CANDIDATES = (
    Candidate("1 part, 2 stages", parts=1, stages=2),
    Candidate("1 part", parts=1),
    Candidate("shipped", shipped=True),
    Candidate("4 programs", programs=4),
    Candidate("16 programs", programs=16),
    Candidate("256 keys a part", least_keys=256),
    Candidate("16 prog., 256 keys", programs=16, least_keys=256),
    Candidate("2 stages", stages=2),
    Candidate("4 stages", stages=4),
    Candidate("2 warps", warps=2),
    Candidate("8 warps", warps=8),
    Candidate("128 at once", keys=128),
    Candidate("128, 8 warps", keys=128, warps=8),
    Candidate("added by a kernel", counted=False),
)
TORCH = "torch's kernel"


@dataclass(frozen=True, slots=True)
class Case:
    """A step: queries of each sequence, and contexts as serving has them or all the same."""

    sequences: int
    queries: int
    drawn: bool

    def contexts(self) -> list[int]:
        """Keys of each sequence, its queries among them; the same every time."""
        if not self.drawn:
            return [EVEN] * self.sequences
        if self.sequences == 1:
            return [MEAN]
        generator = np.random.default_rng(self.sequences)
        drawn = SHORTEST + generator.exponential(MEAN - SHORTEST, self.sequences)
        return [int(context) for context in np.minimum(drawn, LONGEST)]

    def reading(self) -> float:
        """Microseconds that reading keys and values takes at least."""
        return sum(self.contexts()) * KV_HEADS * SIZE * 2 * 2 / _READS


CASES = tuple(
    Case(sequences, queries, drawn)
    for drawn in (True, False)
    for queries in QUERIES
    for sequences in SEQUENCES
)
# By row's name and case; missing where a candidate gave something else than torch's kernel.
Times = Mapping[tuple[str, Case], float]


def lines(times: Times) -> list[str]:
    """Two tables, the fastest of each column marked, and who is fastest over all by queries."""
    rows = [TORCH, *(candidate.name for candidate in CANDIDATES)]
    written = []
    for drawn, title in ((True, f"contexts {SHORTEST} to {LONGEST}"), (False, f"all {EVEN}")):
        cases = [case for case in CASES if case.drawn is drawn]
        heads = "".join(f"{f'{case.sequences}x{case.queries}':>8}" for case in cases)
        written.append(f"{f'us, {title}':<20}{heads}")
        reading = "".join(f"{case.reading():>7.1f} " for case in cases)
        written.append(f"{'reading, at least':<20}{reading}")
        best = {case: min(times.get((row, case), math.inf) for row in rows) for case in cases}
        for row in rows:
            cells = ""
            for case in cases:
                told = times.get((row, case))
                mark = "*" if told == best[case] else " "
                cells += f"{told:>7.1f}{mark}" if told is not None else f"{'-':>7} "
            written.append(f"{row:<20}{cells}")
        written.append("")
    for queries in QUERIES:
        scores = [(score, row) for row in rows if (score := _score(times, row, queries))]
        first = ", ".join(f"{row} {score:.2f}" for score, row in sorted(scores)[:4])
        written.append(f"of {queries} queries, times as shipped (geometric mean): {first}")
    return written


def _score(times: Times, row: str, queries: int) -> float | None:
    """Over the same shipped; None where a case is missing."""
    ratios = []
    for case in CASES:
        if case.queries == queries:
            mine, shipped = times.get((row, case)), times.get(("shipped", case))
            if mine is None or shipped is None:
                return None
            ratios.append(mine / shipped)
    return statistics.geometric_mean(ratios)
