"""The GPU benchmark's report: one JSON document, and the Markdown page made of it.

Knows how figures are shown; everything on the page comes from the document, so that a page can be
made again from an old document, or of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bars import PLAIN, Verdict, clients, never_slower_bars
from benchmarks.cpu_report import (
    bar_json,
    bars_table,
    cell_json,
    never_slower_text,
    spread,
    table_line,
)
from benchmarks.gpu_bars import SPECULATING, VLLM_PLAIN, relative, relative_bars, wanted
from benchmarks.gpu_ceiling import Ceiling, StepCosts, ceiling, ceiling_table
from benchmarks.gpu_seen import seen_table
from benchmarks.measurements import CellKey, Measurement, Measurements, distinct

NOTES = (
    "A cell: new tokens a second of all clients together, prefill included (median over "
    "repetitions, lowest to highest); × ours plain, measured side by side in rotating order; mean "
    "acceptance length / draft acceptance rate; how many answers equal the system's plain row's, "
    "token for token (bf16 sums depend on how many rows are multiplied at once, so answers may "
    "part at near-ties: equality is proved in float32, exactness.md).",
    "Speed counts the time in which every client has a request in flight: from the start until a "
    "client has its answer and finds no prompt left; with one client, or one prompt for each, all "
    "of it. When each token came is not known, so of an answer that ends later as large a share of "
    "the tokens counts as of its time, prefill included, lies before that moment.",
    "Outrider is asked over HTTP through its gateway; verifier and proposers are processes of "
    "their own on the same machine, joined by gRPC. vLLM is called inside a process, without a "
    "server, and without per-request seeds. Both detokenize. All get the same token ids.",
    "One engine has the card at a time: vLLM starts when Outrider has ended. A ratio to vLLM is "
    "of medians; its spread is the widest that both spreads allow.",
    "Cold: every request to Outrider carries its own cache salt, so neither the prompt cache nor "
    "the suffix proposer's memory of other answers helps; vLLM runs with prefix caching off.",
)


@dataclass(frozen=True, slots=True)
class GpuReport:
    """`machine`, `versions`, `settings`, `options` and `starts` are shown as they are.

    `settings` are what all systems share; `options` each engine's own; `starts` the seconds each
    took to start, `times` when it was ready; `step_costs` the engine's alone, for the ceilings.
    """

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    measurements: Measurements
    options: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)
    step_costs: StepCosts = field(default_factory=StepCosts)
    notes: tuple[str, ...] = ()
    complete: bool = True
    rows: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        found = self.measurements
        cells = [(key, found.cell(key)) for key in found.cell_keys()]
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "settings": dict(self.settings),
            "options": dict(self.options),
            "starts": dict(self.starts),
            "times": dict(self.times),
            "step_costs": self.step_costs.to_json(),
            "complete": self.complete,
            "notes": list(self.notes),
            "rows": list(self.rows),
            "bars": [bar_json(bar) for bar in relative_bars(found) + never_slower_bars(found)],
            "cells": [
                {
                    **cell_json(cell),
                    "times_vllm_plain": _median(relative(found, key)),
                    "times_own_plain": _median(found.ratio(key, own_plain(key.row))),
                    "ceiling": _limit(ceiling(found, key, own_plain(key.row), self.step_costs)),
                }
                for key, cell in cells
                if cell
            ],
            "measurements": [item.to_json() for item in found.items],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> GpuReport:
        items = [Measurement.from_json(item) for item in document["measurements"]]
        return cls(
            command=document["command"],
            machine=document["machine"],
            versions=document["versions"],
            settings=document["settings"],
            measurements=Measurements(items),
            options=document["options"],
            starts=document["starts"],
            times=document.get("times", {}),
            step_costs=StepCosts.from_json(document.get("step_costs", ())),
            notes=tuple(document["notes"]),
            complete=document["complete"],
            rows=tuple(document["rows"]),
        )

    def to_markdown(self) -> str:
        found = self.measurements
        sections = ["# Tokens a second on a GPU", self._about(), "## Bars", self._summary()]
        keys = found.cell_keys()
        sets = distinct(keys, lambda key: key.prompt_set)
        for name in sets if relative_is_known(found) else ():
            title = "Relative to vLLM plain on the same card"
            sections += [title if len(sets) == 1 else f"{title}, {name}", self._relative(name)]
        missed = [bar for bar in relative_bars(found) if bar.verdict is Verdict.MISSED]
        if missed:
            missed.sort(key=lambda bar: bar.margin)
            sections += ["Missed, worst first:", bars_table(missed)]
        sections.append(never_slower_text(never_slower_bars(found)))
        sections += self._not_cold()
        for name in sets:
            for temperature in distinct(keys, lambda key: key.temperature):
                heading = (
                    f"## T={temperature:g}" if len(sets) == 1 else f"## {name}, T={temperature:g}"
                )
                sections += [heading, self._table(name, temperature)]
        plain_of = {row: own_plain(row) for row in distinct(keys, lambda key: key.row)}
        limits = ceiling_table(found, plain_of, self.step_costs)
        if limits:
            sections += ["## What the drafts allowed", limits]
        seen = seen_table(found)
        if seen:
            sections += ["## Where the time goes", seen]
        sections += ["## How to read this", "\n".join(f"- {note}" for note in self.notes)]
        return "\n\n".join(sections) + "\n"

    def _about(self) -> str:
        lines = [f"`{self.command}`", ""]
        if not self.complete:
            lines += ["**The run was interrupted; what it had measured is shown.**", ""]
        starts = {name: f"{seconds:.0f} s" for name, seconds in self.starts.items()}
        for title, values in (
            ("Machine", self.machine),
            ("Versions", self.versions),
            ("Settings", self.settings),
            ("Prompts", self._prompts()),
            ("Options", self.options),
            ("Start-up", starts),
            ("Ready at", self.times),
        ):
            if values:
                shown = "; ".join(f"{name} {value}" for name, value in values.items())
                lines.append(f"- {title}: {shown}")
        return "\n".join(lines)

    def _prompts(self) -> dict[str, str]:
        """How many answers a repetition of one row has, and the prompts' mean length."""
        found: dict[str, str] = {}
        for key in sorted(self.measurements.cell_keys(), key=lambda key: key.clients):
            items = [item for item in self.measurements.of(key) if item.repetition == 0]
            count = sum(len(item.outputs) for item in items)
            if count:
                mean = sum(item.prompt_tokens for item in items) / count
                found.setdefault(
                    f"at {clients(key.clients)}", f"{count} of {mean:.0f} tokens on average"
                )
        return found

    def _summary(self) -> str:
        verdicts = [bar.verdict for bar in relative_bars(self.measurements)]
        met, missed, unmeasured = (
            verdicts.count(kind) for kind in (Verdict.MET, Verdict.MISSED, Verdict.NOT_MEASURED)
        )
        return (
            f"{len(verdicts)} bars over vLLM plain: {met} met, {missed} missed, "
            f"{unmeasured} not measured."
        )

    def _relative(self, prompt_set: str) -> str:
        """The issue's table: rows at a temperature, numbers of clients, ratios with verdicts."""
        keys = [key for key in self.measurements.cell_keys() if key.prompt_set == prompt_set]
        counts = sorted(distinct(keys, lambda key: key.clients))
        lines = [
            table_line(["", *(clients(count) for count in counts)]),
            table_line(["---", *["---:"] * len(counts)]),
        ]
        for temperature in sorted(distinct(keys, lambda key: key.temperature)):
            for row in self._ordered(keys):
                if row == VLLM_PLAIN:
                    continue
                cells = [self._ratio(CellKey(row, prompt_set, n, temperature)) for n in counts]
                lines.append(table_line([f"{row}, T={temperature:g}", *cells]))
        return "\n".join(lines)

    def _ratio(self, key: CellKey) -> str:
        got = relative(self.measurements, key)
        if got is None:
            return "–"
        shown = f"**{got.median:.2f}**{spread(got, 2)}"
        least = wanted(key.row, key.clients, key.temperature)
        if least is None:
            return shown
        verdict = (
            "met" if got.median >= least else f"missed by {100 * (1 - got.median / least):.0f} %"
        )
        return f"{shown}<br>≥ {least:.2f} {verdict}"

    def _table(self, prompt_set: str, temperature: float) -> str:
        keys = [
            key
            for key in self.measurements.cell_keys()
            if key.prompt_set == prompt_set and key.temperature == temperature
        ]
        counts = sorted(distinct(keys, lambda key: key.clients))
        lines = [
            table_line(["", *(clients(count) for count in counts)]),
            table_line(["---", *["---:"] * len(counts)]),
        ]
        for row in self._ordered(keys):
            cells = [self._cell(CellKey(row, prompt_set, n, temperature)) for n in counts]
            lines.append(table_line([row, *cells]))
        return "\n".join(lines)

    def _cell(self, key: CellKey) -> str:
        cell = self.measurements.cell(key)
        if cell is None:
            return "–"
        parts = [f"**{cell.speed.median:,.0f}**{spread(cell.speed, 0)}"]
        base = own_plain(key.row)
        if base != key.row:
            ratio = self.measurements.ratio(key, base)
            if ratio is not None:
                parts.append(f"×{ratio.median:.2f}{spread(ratio, 2)}")
        if cell.steps:
            length, rate = cell.mean_acceptance_length, cell.draft_acceptance_rate
            parts.append(f"{length:.2f} / {100 * rate:.0f} %")
        same, compared = self.measurements.same_outputs(key, base)
        if compared and base != key.row and (key.temperature == 0 or base == PLAIN):
            parts.append(f"{same}/{compared} same")
        return "<br>".join(parts)

    def _ordered(self, keys: Sequence[CellKey]) -> list[str]:
        measured = distinct(keys, lambda key: key.row)
        rows = [row for row in self.rows if row in measured]
        return rows + [row for row in measured if row not in rows]

    def _not_cold(self) -> list[str]:
        """A warning where a row was helped by the prompt cache."""
        cached = [item.row for item in self.measurements.items if item.cached_prompt_tokens]
        if not cached:
            return []
        names = ", ".join(dict.fromkeys(cached))
        return [f"**Not cold: {names} found prompt tokens in the cache.**"]


def relative_is_known(found: Measurements) -> bool:
    """Whether anything was measured beside vLLM's plain decoding, as well as that."""
    rows = distinct(found.cell_keys(), lambda key: key.row)
    return VLLM_PLAIN in rows and len(rows) > 1


def own_plain(row: str) -> str:
    """The plain row of a row's own system."""
    return PLAIN if row in SPECULATING else f"{row.split()[0]} plain"


def _limit(found: Ceiling | None) -> dict[str, float] | None:
    return None if found is None else found.to_json()


def _median(figure: Any) -> float | None:
    return None if figure is None else figure.median
