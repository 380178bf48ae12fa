"""The engine's report: one JSON document, and the Markdown page made of it.

Knows how figures are shown; neither how they were taken nor which configurations there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cpu_report import table_line

NOTES = (
    "A step: `TorchEngine.run` of so many sequences, each with so many tokens behind its context, "
    "by the host's clock, in milliseconds: the median, the middle half of the calls in brackets.",
    "Kernels: torch's profiler, median of three more calls. *Forward* is the largest launch, with "
    "the time from its first kernel to its last in brackets; *others* are all other launches of "
    "the call (the choice, the copies). What is left of the step is the host's.",
    "Filtered: temperature 1, top_p 0.9, top_k 50. Prefill: one call, the prompt's last token "
    "chooses; *beside* so many decoding sequences.",
    "Steady: plain steps one behind the other, each begun before the host asks for it.",
    "Checks: right drafts are the answer's own tokens; *one step over them all* offers an answer "
    "that was decoded token by token as drafts behind its prompt, which is no captured shape "
    "(where rounding decides a near-tie, the rest of that answer counts as different); equal bits "
    "compares the log-probabilities of a row's top tokens.",
)


@dataclass(frozen=True, slots=True)
class EngineReport:
    """`results` by configuration are what gpu_engine_case.py prints, or `{"error": …}`."""

    command: str
    machine: Mapping[str, str]
    settings: Mapping[str, str]
    results: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "complete": self.complete,
            "results": dict(self.results),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> EngineReport:
        return cls(
            command=document["command"],
            machine=document["machine"],
            settings=document["settings"],
            results=document["results"],
            complete=document["complete"],
        )

    def to_markdown(self) -> str:
        sections = ["# One step of the engine", self._about()]
        if self._measured():
            sections += ["## A greedy step, ms", self._compared()]
        for name, result in self._measured().items():
            sections += [f"## {name}", _start(result), _decoding(result), _prefill(result)]
            sections += [f"**{part} failed:** {why}" for part, why in result["errors"].items()]
        sections += ["## Is it right?", self._checks()] if self._measured() else []
        sections += ["## How to read this", "\n".join(f"- {note}" for note in NOTES)]
        return "\n\n".join(section for section in sections if section) + "\n"

    def _measured(self) -> dict[str, dict[str, Any]]:
        return {name: result for name, result in self.results.items() if "error" not in result}

    def _about(self) -> str:
        lines = [f"`{self.command}`", ""]
        if not self.complete:
            lines += ["**The run was interrupted; what it had measured is shown.**", ""]
        for title, values in (("Machine", self.machine), ("Settings", self.settings)):
            shown = "; ".join(f"{name} {value}" for name, value in values.items())
            lines.append(f"- {title}: {shown}")
        for name, result in self.results.items():
            if "error" in result:
                lines.append(f"- **{name} failed:** {result['error']}")
        return "\n".join(lines)

    def _compared(self) -> str:
        """Every configuration's greedy step beside the first one's."""
        results = self._measured()
        times = {
            name: {(line["sequences"], line["tokens"]): line for line in result.get("decoding", ())}
            for name, result in results.items()
        }
        shapes = list(dict.fromkeys(shape for found in times.values() for shape in found))
        lines = [
            table_line(["sequences × tokens", *results]),
            table_line(["---", *["---:"] * len(results)]),
        ]
        for shape in shapes:
            base: float | None = None
            cells = []
            for found in times.values():
                if shape not in found:
                    cells.append("–")
                    continue
                run = found[shape]["greedy"]["run_ms"]
                cells.append(f"{run:.2f}" if base is None else f"{run:.2f} (×{run / base:.2f})")
                base = base or run
            lines.append(table_line([f"{shape[0]} × {shape[1]}", *cells]))
        return "\n".join(lines)

    def _checks(self) -> str:
        results = self._measured()
        checks = dict.fromkeys(
            check for result in results.values() for check in result.get("checks", {})
        )
        lines = [
            table_line(["check", *results]),
            table_line(["---", *["---:"] * len(results)]),
        ]
        for check in checks:
            cells = [_of(result.get("checks", {}).get(check)) for result in results.values()]
            lines.append(table_line([check, *cells]))
        first = next(iter(results.values())).get("answers", {})
        for choice, answers in first.items():
            cells = [
                _of(_alike(result.get("answers", {}).get(choice, []), answers))
                for result in results.values()
            ]
            lines.append(table_line([f"{choice}: tokens equal the first column's", *cells]))
        return "\n".join(lines)


def _start(result: dict[str, Any]) -> str:
    said = [f"Started in {result['start_seconds']:.0f} s"]
    if "cold_start_seconds" in result:
        said.append(f"{result['cold_start_seconds']:.0f} s without compiled code")
    if "memory_gib" in result:
        said.append(f"{result['memory_gib']:.1f} GiB allocated")
    said += [str(result[name]) for name in ("forward", "device_name") if result.get(name)]
    if result.get("commit"):
        said.append(f"commit {result['commit']}")
    return "; ".join([*said, f"torch {result['torch']}"]) + "."


def _decoding(result: dict[str, Any]) -> str:
    lines = result.get("decoding", [])
    if not lines:
        return ""
    choices = [name for name, value in lines[0].items() if isinstance(value, dict)]
    heads = [f"{name}" for name in choices]
    shown = [
        table_line(
            [
                "sequences × tokens",
                *heads,
                "steady",
                "kernels: forward",
                "others " + " / ".join(heads),
            ]
        ),
        table_line(["---", *["---:"] * (len(heads) + 3)]),
    ]
    for line in lines:
        greedy = line[choices[0]]
        forward = "–"
        if "forward_ms" in greedy:
            forward = f"{greedy['forward_ms']:.2f} ({greedy['forward_span_ms']:.2f})"
        others = [line[name].get("others_ms") for name in choices]
        shown.append(
            table_line(
                [
                    f"{line['sequences']} × {line['tokens']}",
                    *(_run(line[name]) for name in choices),
                    f"{line['steady_ms']:.2f}" if "steady_ms" in line else "–",
                    forward,
                    " / ".join("–" if other is None else f"{other:.2f}" for other in others),
                ]
            )
        )
    return "\n".join(shown)


def _prefill(result: dict[str, Any]) -> str:
    lines = result.get("prefill", [])
    parts = [
        f"{line['tokens']} tokens"
        + (f" beside {line['beside']}" if line["beside"] else "")
        + f" {line['run_ms']:.1f} ms"
        for line in lines
    ]
    return f"Prefill: {', '.join(parts)}." if parts else ""


def _run(times: dict[str, Any]) -> str:
    low, high = times["middle_half_ms"]
    return f"{times['run_ms']:.2f} ({low:.2f}–{high:.2f})"


def _of(pair: list[int] | None) -> str:
    return "–" if pair is None else f"{pair[0]}/{pair[1]}"


def _alike(mine: list[list[int]], theirs: list[list[int]]) -> list[int] | None:
    """How many tokens stand at the same place in both, and how many there are."""
    if not mine:
        return None
    same = sum(
        a == b for x, y in zip(mine, theirs, strict=False) for a, b in zip(x, y, strict=False)
    )
    return [same, sum(map(len, theirs))]
