"""The traces' report: one JSON document, and the Markdown page made of it.

Knows the bars of idleness and how figures are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bars import clients
from benchmarks.cpu_report import table_line
from benchmarks.gpu_idle import Idle
from benchmarks.step_kinds import StepKinds

# Number of clients -> the most that the device may idle; what lies between takes the lower one's.
BARS = {1: 0.15, 8: 0.05}
SHOWN = 4

NOTES = (
    "Idle: the share of the traced time in which no launch was under way on the device; a captured "
    "step counts as one launch from its first kernel to its last. *Kernels*: the share in which "
    "a kernel ran. *Own account*: the idle share of the second before, without the profiler, as "
    "the engine's own events have it.",
    "The engine's core runs in the benchmark's process, under the load of so many clients that "
    "each ask again when they are answered; proposers are processes of their own on Unix sockets. "
    "The edge (text, HTTP) is left out: it has another process where it matters.",
    "The host's time is that of the engine's thread, innermost mark first; *unmarked* is the "
    "loop's own, *engine: run* what is left of it beside its named pieces. The profiler and the "
    "marks, about a microsecond each, slow the host: tokens a second are told without and with "
    "them, and an idle share with them is not less than one without.",
    "Steps are counted as the controller is told of them. One that was begun ahead and has a "
    "prompt beside it counts twice; one that is in no count was planned, and nobody was waited "
    "for.",
)


@dataclass(frozen=True, slots=True)
class Traced:
    """One load's trace. Tokens a second: without the profiler, then with it.

    `own_idle` is the idle share without the profiler, by the engine's account; None without one.
    `steps` are those that were told while it was traced.
    """

    mode: str
    clients: int
    temperature: float
    untraced: float
    traced: float
    verifying: float
    speculation: str
    idle: Idle
    own_idle: float | None = None
    steps: StepKinds = field(default_factory=StepKinds)

    @property
    def bar(self) -> float:
        return BARS[max(count for count in BARS if count <= self.clients)]

    def to_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "clients": self.clients,
            "temperature": self.temperature,
            "tokens_per_second": self.untraced,
            "tokens_per_second_traced": self.traced,
            "rounds_with_drafts_per_step": self.verifying,
            "speculation": self.speculation,
            "bar": self.bar,
            "own_idle_share": self.own_idle,
            "step_kinds": self.steps.to_json(),
            **self.idle.to_json(),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Traced:
        return cls(
            values["mode"],
            values["clients"],
            values["temperature"],
            values["tokens_per_second"],
            values["tokens_per_second_traced"],
            values["rounds_with_drafts_per_step"],
            values["speculation"],
            Idle.from_json(values),
            values["own_idle_share"],
            StepKinds.from_json(values["step_kinds"]),
        )


@dataclass(frozen=True, slots=True)
class TraceReport:
    """`missing` are methods that could not be marked; their time shows under what calls them."""

    command: str
    machine: Mapping[str, str]
    settings: Mapping[str, str]
    start_seconds: float = 0.0
    traces: tuple[Traced, ...] = ()
    missing: tuple[str, ...] = ()
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "start_seconds": self.start_seconds,
            "missing": list(self.missing),
            "complete": self.complete,
            "traces": [trace.to_json() for trace in self.traces],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> TraceReport:
        return cls(
            document["command"],
            document["machine"],
            document["settings"],
            document["start_seconds"],
            tuple(Traced.from_json(trace) for trace in document["traces"]),
            tuple(document["missing"]),
            document["complete"],
        )

    def to_markdown(self) -> str:
        lines = ["# What the card waits for", "", f"`{self.command}`", ""]
        if not self.complete:
            lines += ["**The run was interrupted; what it had traced is shown.**", ""]
        for title, values in (("Machine", self.machine), ("Settings", self.settings)):
            shown = "; ".join(f"{name} {value}" for name, value in values.items())
            lines.append(f"- {title}: {shown}")
        if self.missing:
            lines.append(f"- Not marked: {', '.join(self.missing)}")
        sections = ["\n".join(lines)]
        if self.traces:
            sections += ["## Idle share", self._summary()]
        for trace in self.traces:
            state = f"Speculation: {trace.speculation}."
            state += f" {trace.steps.describe()}."
            sections += [f"## {_name(trace)}", state, _by_host(trace.idle), _largest(trace.idle)]
        sections += ["## How to read this", "\n".join(f"- {note}" for note in NOTES)]
        return "\n\n".join(sections) + "\n"

    def _summary(self) -> str:
        measured = ("tokens/s (traced)", "steps", "ms a step", "drafts")
        heads = (*measured, "kernels", "own account", "idle", "bar")
        lines = [
            table_line(["", *heads]),
            table_line(["---", *["---:"] * len(heads)]),
        ]
        for trace in self.traces:
            found = trace.idle
            met = "met" if found.idle <= trace.bar else "missed"
            lines.append(
                table_line(
                    [
                        _name(trace),
                        f"{trace.untraced:,.0f} ({trace.traced:,.0f})",
                        str(found.steps),
                        f"{1000 * found.seconds / max(found.steps, 1):.2f}",
                        f"{trace.verifying:.2f} rounds a step",
                        f"{100 * found.kernels:.1f} %",
                        "–" if trace.own_idle is None else f"{100 * trace.own_idle:.1f} %",
                        f"**{100 * found.idle:.1f} %**",
                        f"≤ {100 * trace.bar:.0f} % {met}",
                    ]
                )
            )
        return "\n".join(lines)


def _name(trace: Traced) -> str:
    return f"{trace.mode}, {clients(trace.clients)}, T={trace.temperature:g}"


def _by_host(found: Idle) -> str:
    """All gaps together, in ms of a step."""
    steps = max(found.steps, 1)
    total = sum(found.host.values())
    parts = [
        f"{name} {spent / steps:.3f}" for name, spent in found.host.items() if spent > 0.01 * total
    ]
    return (
        f"{found.gaps} gaps, {total / steps:.3f} ms a step; in them the host did, ms a step: "
        f"{', '.join(parts) or 'nothing'}."
    )


def _largest(found: Idle) -> str:
    lines = [table_line(["at, ms", "gap, ms", "what the host did, ms"])]
    lines.append(table_line(["---:", "---:", "---"]))
    for gap in found.largest:
        parts = list(gap.host.items())[:SHOWN]
        shown = ", ".join(f"{name} {spent:.3f}" for name, spent in parts)
        lines.append(table_line([f"{gap.at_ms:.1f}", f"{gap.ms:.3f}", shown]))
    return "\n".join(lines)
