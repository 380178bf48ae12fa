"""The exactness check's report: a JSON document and the page made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cpu_report import table_line
from benchmarks.divergence import TOLERANCE
from benchmarks.exact_run import CaseResult, Found


@dataclass(frozen=True, slots=True)
class ExactReport:
    """`mode` says how was decoded; `results` begin with the plain ones."""

    command: str
    mode: str
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    results: Sequence[CaseResult]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "mode": self.mode,
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "passed": self.passed,
            "tolerance": TOLERANCE,
            "cases": [result.to_json() for result in self.results],
        }

    def to_markdown(self) -> str:
        return (
            "\n\n".join(
                [
                    f"# Exactness: {self.mode}",
                    self._about(),
                    self._summary(),
                    self._table(),
                    "## Every output that differs",
                    self._differences(),
                    "## How to read this",
                    LEGEND,
                ]
            )
            + "\n"
        )

    def _about(self) -> str:
        parts = [f"`{self.command}`", ""]
        for title, values in (
            ("Machine", self.machine),
            ("Versions", self.versions),
            ("Settings", self.settings),
        ):
            shown = "; ".join(f"{name} {value}" for name, value in values.items())
            parts.append(f"- {title}: {shown}")
        return "\n".join(parts)

    def _summary(self) -> str:
        outputs = sum(result.outputs for result in self.results)
        equal = sum(result.equal for result in self.results)
        found = [one for result in self.results for one in result.found]
        failures = [one for result in self.results for one in result.failures]
        vacuous = sum(result.vacuous for result in self.results)
        verdict = "**Passed.**" if self.passed else "**FAILED.**"
        text = (
            f"{verdict} {outputs} outputs, {sum(r.tokens for r in self.results)} tokens compared: "
            f"{equal} outputs equal, {len(found) - len(failures)} numerical divergences, "
            f"{len(failures)} failures."
        )
        return text + (f" {vacuous} cases drafted nothing." if vacuous else "")

    def _table(self) -> str:
        head = ["case", "equal", "numerical", "failed", "drafts accepted", "tokens a step", "s"]
        lines = [table_line(head), table_line(["---", *["---:"] * (len(head) - 1)])]
        for result in self.results:
            share = f"{result.accepted}/{result.drafted}" if result.drafted else "–"
            length = f"{1 + result.accepted / result.steps:.2f}" if result.steps else "–"
            numerical = len(result.found) - len(result.failures)
            failed = "nothing drafted" if result.vacuous else str(len(result.failures))
            lines.append(
                table_line(
                    [
                        str(result.case),
                        f"{result.equal}/{result.outputs}",
                        str(numerical),
                        failed,
                        share,
                        length,
                        f"{result.seconds:.0f}",
                    ]
                )
            )
        return "\n".join(lines)

    def _differences(self) -> str:
        found = [(result, one) for result in self.results for one in result.found]
        if not found:
            return "None."
        head = ["case", "prompt", "position", "right", "got", "score gap", "verdict"]
        lines = [table_line(head), table_line(["---"] * len(head))]
        lines += [_difference(result, one) for result, one in found]
        return "\n".join(lines)


def _difference(result: CaseResult, one: Found) -> str:
    what = one.divergence
    return table_line(
        [
            str(result.case),
            one.job,
            str(what.position),
            str(what.expected),
            str(what.got),
            "–" if what.gap is None else f"{what.gap:.2e}",
            "numerical" if what.numerical else "FAILURE",
        ]
    )


LEGEND = f"""\
- A case decodes every prompt with its fixed seed; an output is equal iff it is plain decoding's,
  token for token, end included. `none` with one client is plain decoding itself, held against a
  teacher-forced float32 forward by transformers plus the coupled rule's noise.
- A divergence is numerical only where, by that forward, the score of the best token and of both
  candidates lie within {TOLERANCE:g} of each other (score: logit over temperature, plus noise).
  Anything else is a failure. Every divergence of either kind is listed.
- A case that drafted nothing fails: it would prove nothing."""
