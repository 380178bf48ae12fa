"""The bars that Outrider has to clear on a GPU, and the figures they are held against.

Knows the bars and the names of the rows they speak of. All are tokens a second relative to vLLM's
plain decoding on the same card, prompts and temperature; absolute speeds are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.bars import BOTH, NGRAM, PLAIN, SUFFIX, Bar, clients
from benchmarks.measurements import CellKey, Figure, Measurements, distinct

VLLM_PLAIN = "vllm plain"
VLLM_NGRAM = "vllm ngram"
SPECULATING = (NGRAM, SUFFIX, BOTH)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`at` maps a number of clients to the least ratio of the rows at these temperatures."""

    rows: tuple[str, ...]
    temperatures: tuple[float, ...]
    at: Mapping[int, float]


BARS = (
    Wanted((PLAIN,), (0.0, 1.0), {1: 0.95, 8: 1.0, 32: 1.0, 128: 0.95}),
    Wanted(SPECULATING, (0.0,), {1: 2.3, 8: 2.0, 32: 1.6, 128: 1.15}),
    Wanted(SPECULATING, (1.0,), {1: 1.3, 8: 1.3, 32: 1.1, 128: 1.0}),
)


def wanted(row: str, count: int, temperature: float) -> float | None:
    """The bar of one cell; None where there is none."""
    for bar in BARS:
        if row in bar.rows and temperature in bar.temperatures:
            return bar.at.get(count)
    return None


def relative(found: Measurements, key: CellKey, base_row: str = VLLM_PLAIN) -> Figure | None:
    """Median speed over the base row's median speed; None where either is missing.

    The two were not measured side by side, so the spread is the widest that both allow: lowest
    over highest to highest over lowest.
    """
    mine = found.cell(key)
    base = found.cell(CellKey(base_row, key.prompt_set, key.clients, key.temperature))
    if mine is None or base is None:
        return None
    return Figure(
        mine.speed.median / base.speed.median,
        mine.speed.low / base.speed.high,
        mine.speed.high / base.speed.low,
        min(mine.speed.repetitions, base.speed.repetitions),
    )


def relative_bars(found: Measurements) -> list[Bar]:
    """One bar for each row, number of clients and temperature of the table, measured or not.

    Several prompt sets have their bars each; without any measurement there is one nameless set.
    """
    sets = distinct(found.cell_keys(), lambda key: key.prompt_set) or [""]
    bars: list[Bar] = []
    for group in BARS:
        for temperature in group.temperatures:
            for row in group.rows:
                for name in sets:
                    for count, least in group.at.items():
                        key = CellKey(row, name, count, temperature)
                        title = f"{row}, {clients(count)}, T={temperature:g}"
                        if len(sets) > 1:
                            title += f", {name}"
                        bars.append(Bar(title, least, relative(found, key), least))
    return bars
