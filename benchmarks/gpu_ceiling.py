"""What a row's drafts allowed: its gain if asking were free and the engine alone set the price.

Knows the row's own counters, what the engine's table says a step costs, and nothing of where the
rest went. Drafts that nobody verified (the controller's choice) are not in it: it tells whether
what was verified could have paid, not whether more of it would have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bars import clients
from benchmarks.cpu_report import table_line
from benchmarks.gpu_readings import SUM
from benchmarks.measurements import CellKey, Measurement, Measurements

PREFILL = "outrider:verify_seconds{prefill}"

EXPLANATION = (
    "From the row's own counters: tokens that a sequence emitted in a step, the share of its steps "
    "that verified drafts and how many drafts a step verified on average. *Costs* is the engine's "
    "step with so many drafts over its plain one, as the engine's table has it (1 where there is "
    "none). *Allowed* is what that gains over plain decoding if nothing else cost anything, with "
    "prefill taking the share of the time that it takes in the plain row; *kept* is how much of "
    "it the row measured. A low *allowed* is the drafts', a low *kept* the host's."
)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of a greedy step: (sequences, tokens of each) -> ms."""

    ms: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @classmethod
    def from_engine_report(cls, document: Mapping[str, Any]) -> StepCosts:
        """Of gpu_engine.json: its first configuration that was measured."""
        for result in document["results"].values():
            lines = result.get("decoding", [])
            if lines:
                return cls(
                    {(ln["sequences"], ln["tokens"]): ln["greedy"]["run_ms"] for ln in lines}
                )
        return cls()

    @classmethod
    def from_json(cls, rows: Iterable[Sequence[float]]) -> StepCosts:
        return cls({(int(n), int(q)): ms for n, q, ms in rows})

    def to_json(self) -> list[list[float]]:
        return [[n, q, ms] for (n, q), ms in self.ms.items()]

    def factor(self, sequences: int, tokens: float) -> float | None:
        """A step of `tokens` a sequence over a plain one; None where the table has neither.

        Linear between the shapes measured, and no dearer than the largest of them.
        """
        known = sorted((q, ms) for (count, q), ms in self.ms.items() if count == sequences)
        if len(known) < 2 or known[0][0] != 1:
            return None
        sizes = [q for q, _ in known]
        at = min(max(bisect_left(sizes, tokens), 1), len(known) - 1)
        (low, cheap), (high, dear) = known[at - 1], known[at]
        share = min(max((tokens - low) / (high - low), 0.0), 1.0)
        return (cheap + share * (dear - cheap)) / known[0][1]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One cell's; shares are fractions, `costs` 1 where the engine's table does not tell."""

    tokens_per_step: float
    verifying: float
    drafts_per_step: float
    costs: float
    prefill: float

    @property
    def gain(self) -> float:
        """The most that these drafts allow over plain decoding, prefill included."""
        return 1 / (self.prefill + (1 - self.prefill) * self.costs / self.tokens_per_step)

    def to_json(self) -> dict[str, float]:
        return {
            "tokens_per_step": round(self.tokens_per_step, 4),
            "verifying_share": round(self.verifying, 4),
            "drafts_per_step": round(self.drafts_per_step, 4),
            "verification_costs": round(self.costs, 4),
            "prefill_share": round(self.prefill, 4),
            "allowed": round(self.gain, 4),
        }


def ceiling(found: Measurements, key: CellKey, plain_row: str, costs: StepCosts) -> Ceiling | None:
    """None where the cell has verified nothing."""
    items = found.of(key)
    emitted = sum(item.new_tokens for item in items)
    accepted = sum(item.accepted for item in items)
    # Every step of a sequence emits one token besides the drafts it accepts.
    steps = emitted - accepted
    if steps < 1 or not any(item.steps for item in items):
        return None
    drafts = sum(item.drafted for item in items) / steps
    plain = found.of(CellKey(plain_row, key.prompt_set, key.clients, key.temperature))
    return Ceiling(
        tokens_per_step=emitted / steps,
        verifying=sum(item.steps for item in items) / steps,
        drafts_per_step=drafts,
        costs=costs.factor(key.clients, 1 + drafts) or 1.0,
        prefill=prefill_share(plain) or 0.0,
    )


def prefill_share(items: Sequence[Measurement]) -> float | None:
    """Share of the wall clock that steps with prefill took; None where nothing tells."""
    told = [item for item in items if PREFILL + SUM in item.readings]
    if not told:
        return None
    spent = sum(item.readings[PREFILL + SUM] for item in told)
    # Both of the whole load: readings do not tell what belongs to its steady part.
    return min(spent / sum(item.seconds for item in told), 1.0)


def ceiling_table(found: Measurements, plain_of: Mapping[str, str], costs: StepCosts) -> str:
    """One line for each cell that verified drafts; `plain_of` has the plain row of each row.

    Empty where no cell did.
    """
    heads = ("tokens a step", "verifying", "drafts a step", "costs", "prefill", "allowed")
    lines = []
    for key in found.cell_keys():
        plain = plain_of.get(key.row, key.row)
        limit = ceiling(found, key, plain, costs)
        if limit is None:
            continue
        measured = found.ratio(key, plain)
        lines.append(
            table_line(
                [
                    f"{key.row}, {clients(key.clients)}, T={key.temperature:g}",
                    f"{limit.tokens_per_step:.2f}",
                    f"{100 * limit.verifying:.0f} %",
                    f"{limit.drafts_per_step:.2f}",
                    f"×{limit.costs:.2f}",
                    f"{100 * limit.prefill:.0f} %",
                    f"×{limit.gain:.2f}",
                    "–" if measured is None else f"×{measured.median:.2f}",
                    "–" if measured is None else f"{100 * measured.median / limit.gain:.0f} %",
                ]
            )
        )
    if not lines:
        return ""
    top = table_line(["", *heads, "measured", "kept"])
    rule = table_line(["---", *["---:"] * (len(heads) + 2)])
    return EXPLANATION + "\n\n" + "\n".join([top, rule, *lines])
