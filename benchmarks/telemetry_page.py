"""The report of what tracing costs: its JSON document and its page.

Knows what was measured, in turns on one server and on two servers; measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.report_files import write_report
from benchmarks.telemetry_figures import BAR, MOST_FOREIGN, Estimate, Level, as_cost, level_of
from benchmarks.telemetry_turns import Turn

NAME = "telemetry_cost"
MODES = {
    "summary": "`--trace-level summary`, the default, and a sampled request: spans of gateway, "
    "verifier and proposer, sent by a thread of each, received by the gateway and written to the "
    "evidence file",
    "off": "the same processes, and a request whose caller says in its `traceparent` that it is "
    "not sampled: no span is recorded, sent, received or written",
    "none": "`--trace-level none`: the SDK is not imported and nothing is received; only the idle "
    "figures have it",
}
_NOTES = (
    "One server runs all the time, and each request's `traceparent` says whether it is traced. A "
    "turn is a few windows in one mode; four turns over the same prompts are a quad, ABBA, and "
    "which mode begins is drawn. Where the mode changes, requests that do not count come first, "
    "until all that was left of the other mode has been sent and written.",
    "A pair is a window of each mode: the same prompts, as many tokens, in neighbouring turns of "
    "the same place. The cost is one less the exponential of the median log ratio of their tokens "
    "a second (prefill included); the interval is a bootstrap that draws pairs of turns anew. "
    "Below zero: tracing was faster, which is chance.",
    f"The first figures are of the pairs from neither of whose windows other programs took more "
    f"than {MOST_FOREIGN:.0%} of the machine (what /proc/stat counts, less the services, the "
    "benchmark and `outrider serve`), which does not depend on the mode. *Of all pairs* leaves "
    "none out.",
    "*Control* is the same statistic of two neighbouring turns in the same mode: what the machine "
    "shows where nothing differs. Its interval has to hold zero.",
    "Every draft is verified (`enable_adaptive_verification` false, no plain periods): what the "
    "controller decides does not depend on tracing, but would make the halves of a pair unlike.",
    "Processor time is that of a request traced less that of one not traced, while they run and "
    "their spans are sent and written. The verifier's threads that compute the model are told "
    "from its others by being its busiest. *Of the machine's time* is what it costs where the work "
    "spreads over all cores, *of a request's time* (a window's, by its requests) where the model "
    "waits for all of it: for what the tokens a second are too noisy, they lie between these.",
    "`off` leaves the reading of the request's header, and what a server with telemetry does for "
    "no request: totals sent every five seconds, and threads that wait. The idle figures are of "
    "the latter.",
)


@dataclass(frozen=True, slots=True)
class CostReport:
    """`idle` is processor ms a second of an idle server by `--trace-level`, empty if not measured.

    `traced` requests were asked for, `received` of them were in the gateway's evidence at the end;
    None while it runs. `two_servers` is the document of telemetry_two_servers.py, kept as it is.
    """

    command: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    cores: int = 1
    idle: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    traced: int = 0
    received: int | None = None
    two_servers: Mapping[str, Any] | None = None

    @classmethod
    def load(cls, path: Path) -> CostReport:
        """An empty one where there is no file."""
        if not path.exists():
            return cls()
        document: dict[str, Any] = json.loads(path.read_text())
        known = {f.name for f in fields(cls)} & document.keys()
        turns = tuple(Turn.from_json(turn) for turn in document.get("turns", ()))
        return replace(cls(**{name: document[name] for name in known}), turns=turns)

    def levels(self) -> list[Level]:
        """In the order of clients, those with a finished quad."""
        found = (level_of(self.turns, n) for n in sorted({turn.clients for turn in self.turns}))
        return [level for level in found if level is not None]

    def to_json(self) -> dict[str, Any]:
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        shown["turns"] = [asdict(turn) for turn in self.turns]
        levels = [asdict(level) | {"verdict": level.verdict} for level in self.levels()]
        return {"modes": MODES, "levels": levels, **shown}

    def to_markdown(self) -> str:
        sections = ["# What tracing costs, in tokens a second"]
        if self.turns:
            sections += [*self._head(), *self._tables(self.levels())]
        if self.two_servers is not None:
            sections.append(_two_servers(self.two_servers))
        sections.append(
            "The processor time of a trace, without model and server: "
            "[telemetry_spans.md](telemetry_spans.md)."
        )
        if self.turns:
            sections += ["## How to read this", _list(_NOTES)]
        return "\n\n".join(sections) + "\n"

    def write(self, out: Path) -> None:
        write_report(self, out, NAME)

    def _head(self) -> Iterable[str]:
        yield f"`{self.command}`"
        if self.received is None:
            yield "**The run was interrupted; what it had measured is shown.**"
        described = [("Machine", self.machine), ("Versions", self.versions)]
        described.append(("Settings", self.settings))
        yield _list(
            [
                *(f"{title}: " + _words(values) for title, values in described if values),
                *(f"*{name}*: {meaning}." for name, meaning in MODES.items()),
                *self._received(),
            ]
        )

    def _received(self) -> Iterable[str]:
        if self.received is not None:
            yield f"{self.traced:,} requests were traced; {self.received:,} reached the evidence."

    def _tables(self, levels: Sequence[Level]) -> Iterable[str]:
        lines = [
            f"| clients | cost of *summary* | 95 % interval | {BAR:.0%} | pairs | control | 95 % "
            "interval | of all pairs | 95 % interval | pairs | their middle half | tokens/s, off | "
            "summary |",
            "|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {level.clients} | {_cost(level.change)} | {_interval(level.change)} | "
            f"{level.verdict} | {level.change.count if level.change else 0} | "
            f"{_cost(level.control)} | {_interval(level.control)} | {_cost(level.unfiltered)} | "
            f"{_interval(level.unfiltered)} | {level.unfiltered.count} | "
            f"{as_cost(level.middle_half[1]):+.1%} to {as_cost(level.middle_half[0]):+.1%} | "
            f"{level.speed:.1f} | {level.traced_speed:.1f} |"
            for level in levels
        ]
        yield "\n".join(lines)
        yield _list(
            f"Clients {level.clients}: a window takes {level.window_s:.1f} s; other programs took "
            f"{level.foreign:.1%} of the machine meanwhile (median). Of {level.unfiltered.count} "
            f"pairs, {level.other_rounds} verified drafts in more rounds in one mode than in the "
            f"other, {level.other_answers} gave other tokens."
            for level in levels
        )
        yield "## Processor time"
        lines = [
            "| clients | service | ms a request | 95 % interval | of the machine's time | of a "
            "request's time |",
            "|---:|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {level.clients} | {name} | {spent.value:+.2f} | {_range(spent)} | "
            f"{spent.value / (level.request_s * 1000 * self.cores):+.2%} | "
            f"{spent.value / (level.request_s * 1000):+.2%} |"
            for level in levels
            for name, spent in level.processor_ms.items()
        ]
        yield "\n".join(lines)
        if self.idle:
            yield (
                "Idle, all services, ms of a core a second: "
                + "; ".join(
                    f"`--trace-level {level}` {spent:.2f}" for level, spent in self.idle.items()
                )
                + "."
            )


def _two_servers(document: Mapping[str, Any]) -> str:
    result = document["result"]
    return "\n".join(
        [
            "## Two servers",
            "",
            "`python -m benchmarks.telemetry_two_servers`: one server with telemetry and one "
            "without (`none`) answer each prompt one after the other. Run as "
            f"`{document['command']}`, commit {document['machine']['commit']}. "
            f"{len(document['pairs'])} pairs: {result['ratio']:.2f} of the speed without, their "
            f"middle half from {result['low']:.2f} to {result['high']:.2f}. That is too coarse for "
            f"{BAR:.0%}, and what the one server still sent fell into the other's time.",
        ]
    )


def _cost(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{as_cost(estimate.value):+.2%}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{as_cost(estimate.high):+.2%} to {as_cost(estimate.low):+.2%}"


def _range(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.low:+.2f} to {estimate.high:+.2f}"


def _words(values: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in values.items())


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
