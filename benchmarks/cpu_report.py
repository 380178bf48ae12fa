"""The CPU benchmark's report: one JSON document, and the Markdown page made of it.

Knows how figures are shown; everything on the page comes from the document, so that a page can be
made again from an old document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bars import (
    PLAIN,
    TRANSFORMERS,
    Bar,
    Verdict,
    clients,
    never_slower_bars,
    speed_bars,
)
from benchmarks.measurements import Cell, CellKey, Figure, Measurement, Measurements, distinct


@dataclass(frozen=True, slots=True)
class Report:
    """`machine`, `versions` and `settings` are shown as they are; `notes` are sentences."""

    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    measurements: Measurements
    notes: tuple[str, ...] = ()
    complete: bool = True
    rows: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        found = self.measurements
        return {
            "command": self.command,
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "complete": self.complete,
            "notes": list(self.notes),
            "rows": list(self.rows),
            "bars": [bar_json(bar) for bar in speed_bars(found) + never_slower_bars(found)],
            "cells": [cell_json(cell) for cell in map(found.cell, found.cell_keys()) if cell],
            "measurements": [item.to_json() for item in found.items],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Report:
        items = [Measurement.from_json(item) for item in document["measurements"]]
        return cls(
            command=document["command"],
            machine=document["machine"],
            versions=document["versions"],
            settings=document["settings"],
            measurements=Measurements(items),
            notes=tuple(document["notes"]),
            complete=document["complete"],
            rows=tuple(document["rows"]),
        )

    def to_markdown(self) -> str:
        sections = [
            "# Tokens a second on a CPU",
            self._about(),
            "## Bars",
            bars_table(speed_bars(self.measurements)),
            never_slower_text(never_slower_bars(self.measurements)),
        ]
        sections += self._not_cold()
        keys = self.measurements.cell_keys()
        for temperature in distinct(keys, lambda key: key.temperature):
            for count in distinct(keys, lambda key: key.clients):
                table = self._table(count, temperature)
                if table:
                    sections += [f"## {clients(count)}, T={temperature:g}", table]
        sections += ["## How to read this", self._legend()]
        return "\n\n".join(sections) + "\n"

    def _not_cold(self) -> list[str]:
        """A warning where a row that should be cold was helped by the prompt cache."""
        cached = {
            item.row: item.cached_prompt_tokens
            for item in self.measurements.items
            if item.cached_prompt_tokens and not item.row.endswith("warm")
        }
        if not cached:
            return []
        return [f"**Not cold: {', '.join(cached)} found prompt tokens in the cache.**"]

    def _about(self) -> str:
        lines = [f"`{self.command}`", ""]
        if not self.complete:
            lines += ["**The run was interrupted; what it had measured is shown.**", ""]
        for title, values in (
            ("Machine", self.machine),
            ("Versions", self.versions),
            ("Settings", self.settings),
        ):
            shown = "; ".join(f"{name} {value}" for name, value in values.items())
            lines.append(f"- {title}: {shown}")
        return "\n".join(lines)

    def _table(self, count: int, temperature: float) -> str:
        keys = [
            key
            for key in self.measurements.cell_keys()
            if key.clients == count and key.temperature == temperature
        ]
        if not keys:
            return ""
        sets = distinct(keys, lambda key: key.prompt_set)
        measured = distinct(keys, lambda key: key.row)
        rows = [row for row in self.rows if row in measured]
        rows += [row for row in measured if row not in rows]
        lines = [table_line(["", *sets]), table_line(["---", *["---:"] * len(sets)])]
        for row in rows:
            cells = [self._cell(CellKey(row, name, count, temperature)) for name in sets]
            lines.append(table_line([row, *cells]))
        return "\n".join(lines)

    def _cell(self, key: CellKey) -> str:
        cell = self.measurements.cell(key)
        if cell is None:
            return "–"
        parts = [f"**{cell.speed.median:.1f}**{spread(cell.speed)}"]
        base = base_row(key.row)
        ratio = self.measurements.ratio(key, base) if base != key.row else None
        if ratio is not None:
            parts.append(f"×{ratio.median:.2f}")
        if cell.steps:
            length, rate = cell.mean_acceptance_length, cell.draft_acceptance_rate
            parts.append(f"{length:.2f} / {100 * rate:.0f} %")
        same, compared = self.measurements.same_outputs(key, base)
        if compared and base.endswith("plain") and base != key.row:
            parts.append(f"{same}/{compared} same")
        return "<br>".join(parts)

    def _legend(self) -> str:
        return "\n".join(
            f"- {line}"
            for line in (
                "A cell: new tokens a second, prefill included (median over repetitions, lowest to "
                "highest); × its system's plain row (outrider plain: × transformers bf16), over "
                "the prompts that both rows measured; mean acceptance length / draft acceptance "
                "rate; how many answers equal the plain row's, token for token. bf16 sums depend "
                "on how many rows are multiplied at once, so answers may part at near-ties: "
                "equality is proved in float32 (exactness.md).",
                "All rows of a prompt are measured one after the other, in rotating order; a ratio "
                "compares neighbours in time. Absolute figures hold for this machine only.",
                *self.notes,
            )
        )


def base_row(row: str) -> str:
    """What a row is compared with: its system's plain row; our plain row with transformers."""
    system = row.split()[0]
    return TRANSFORMERS if row == PLAIN or system == "transformers" else f"{system} plain"


def bars_table(bars: Sequence[Bar]) -> str:
    lines = [
        table_line(["bar", "wanted", "measured", "verdict"]),
        table_line(["---", "---:", "---:", "---"]),
    ]
    lines += [
        table_line([bar.name, f"≥ {bar.wanted:.2f}", figure(bar.got), verdict(bar)]) for bar in bars
    ]
    return "\n".join(lines)


def never_slower_text(bars: Sequence[Bar]) -> str:
    """How many cells are not slower than plain decoding, and all that are."""
    if not bars:
        return "Never slower than plain decoding: not measured."
    count = {kind: sum(bar.verdict is kind for bar in bars) for kind in Verdict}
    summary = (
        f"Never slower than plain decoding, {len(bars)} cells: {count[Verdict.MET]} at 1.00 or "
        f"above, {count[Verdict.WITHIN_NOISE]} within noise (0.95 to 1.00), "
        f"{count[Verdict.MISSED]} below."
    )
    slower = [bar for bar in bars if bar.verdict in (Verdict.WITHIN_NOISE, Verdict.MISSED)]
    slower.sort(key=lambda bar: bar.margin)
    return summary + ("\n\n" + bars_table(slower) if slower else "")


def verdict(bar: Bar) -> str:
    if bar.verdict is Verdict.MET:
        return f"met, {100 * bar.margin:.0f} % above"
    if bar.verdict is Verdict.NOT_MEASURED:
        return "not measured"
    return f"{bar.verdict.value}, {-100 * bar.margin:.0f} % below"


def figure(value: Figure | None) -> str:
    return "–" if value is None else f"{value.median:.2f}{spread(value, 2)}"


def spread(value: Figure, digits: int = 1) -> str:
    """Lowest to highest of several repetitions; nothing for a single one."""
    if value.repetitions < 2:
        return ""
    return f" ({value.low:.{digits}f}–{value.high:.{digits}f})"


def table_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def bar_json(bar: Bar) -> dict[str, Any]:
    return {
        "name": bar.name,
        "wanted": bar.wanted,
        "measured": None if bar.got is None else bar.got.median,
        "low": None if bar.got is None else bar.got.low,
        "high": None if bar.got is None else bar.got.high,
        "repetitions": 0 if bar.got is None else bar.got.repetitions,
        "verdict": bar.verdict.value,
        "margin": bar.margin,
    }


def cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "row": cell.key.row,
        "set": cell.key.prompt_set,
        "clients": cell.key.clients,
        "temperature": cell.key.temperature,
        "tokens_per_second": cell.speed.median,
        "low": cell.speed.low,
        "high": cell.speed.high,
        "repetitions": cell.speed.repetitions,
        "mean_acceptance_length": cell.mean_acceptance_length if cell.steps else None,
        "draft_acceptance_rate": cell.draft_acceptance_rate if cell.steps else None,
        "steps": cell.steps,
        "drafted": cell.drafted,
        "accepted": cell.accepted,
        "cached_prompt_tokens": cell.cached_prompt_tokens,
    }
