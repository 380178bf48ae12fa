"""The bars that speculation on a CPU has to clear, and whether it did.

Knows the bars and the names of the rows they speak of; takes figures as measured. All bars are
ratios of rows measured side by side, never absolute speeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from benchmarks.measurements import CellKey, Figure, Measurements, distinct

TRANSFORMERS = "transformers bf16"
PLAIN = "outrider plain"
NGRAM = "outrider ngram"
SUFFIX = "outrider suffix"
BOTH = "outrider both"
SPECULATIVE = (NGRAM, SUFFIX, BOTH)

PLAIN_OVER_TRANSFORMERS = 1.35
# With speculation over plain, one client, temperature 0.
GAINS = {"summarization": 1.3, "humaneval": 1.8, "rewrite": 2.7}
NEVER_BELOW = 1.0
NOISE_FLOOR = 0.95


class Verdict(Enum):
    MET = "met"
    WITHIN_NOISE = "within noise"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Bar:
    """`got` is the measured ratio; `floor` what still counts as noise around `wanted`."""

    name: str
    wanted: float
    got: Figure | None
    floor: float

    @property
    def verdict(self) -> Verdict:
        if self.got is None:
            return Verdict.NOT_MEASURED
        if self.got.median >= self.wanted:
            return Verdict.MET
        if self.got.median >= self.floor:
            return Verdict.WITHIN_NOISE
        return Verdict.MISSED

    @property
    def margin(self) -> float:
        """How far above (or below, negative) the bar, as a fraction of it; 0 if not measured."""
        return self.got.median / self.wanted - 1 if self.got is not None else 0.0


def speed_bars(measurements: Measurements) -> list[Bar]:
    """Plain decoding over transformers, and speculation over plain decoding, at one client."""
    sets = distinct(measurements.cell_keys(), lambda key: key.prompt_set)
    keys = [CellKey(PLAIN, name, 1, 0.0) for name in sets]
    bars = [
        Bar(
            "plain over transformers generate, bf16, all sets",
            PLAIN_OVER_TRANSFORMERS,
            measurements.ratio_over(keys, TRANSFORMERS),
            PLAIN_OVER_TRANSFORMERS,
        )
    ]
    for name, wanted in GAINS.items():
        got = measurements.ratio(CellKey(BOTH, name, 1, 0.0), PLAIN)
        bars.append(Bar(f"speculation over plain, {name}", wanted, got, wanted))
    return bars


def never_slower_bars(measurements: Measurements) -> list[Bar]:
    """One bar for each speculating row, set, number of clients and temperature measured."""
    return [
        Bar(
            f"{key.row}, {key.prompt_set}, {clients(key.clients)}, T={key.temperature:g}",
            NEVER_BELOW,
            measurements.ratio(key, PLAIN),
            NOISE_FLOOR,
        )
        for key in measurements.cell_keys()
        if key.row in SPECULATIVE
    ]


def clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"
