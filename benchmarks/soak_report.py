"""What a soak found, as JSON and as a page.

Knows what makes a soak pass; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.soak_kinds import KINDS
from benchmarks.soak_leaks import PART, TOLERANCES, WARMUP
from benchmarks.soak_run import SoakResult

_UNITS = {"rss_mib": "resident MiB", "threads": "threads", "fds": "descriptors"}


@dataclass(frozen=True, slots=True)
class SoakReport:
    """`log_complaints` are lines of the server's log that tell of a bug."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    result: SoakResult
    log_complaints: Sequence[str] = ()
    kills_expected: bool = True
    all_kinds_expected: bool = True

    @property
    def problems(self) -> list[str]:
        """Why the soak failed, in words; empty where it passed."""
        result, tally = self.result, self.result.tally
        found = [f"{tally.num_failures} requests failed"] if tally.num_failures else []
        found += [f"not offered: {kind} at {place.value}" for kind, place in result.missing]
        found += [
            f"{one.process} {one.measure} grew from {one.first:g} to {one.last:g}, "
            f"{one.allowed:g} is allowed"
            for one in result.trends
            if not one.passed
        ]
        found += [
            f"{one.what} at the end: {one.found:g}, {one.allowed:g} is allowed"
            for one in result.at_end
            if not one.passed
        ]
        found += [f"the log says: {line}" for line in self.log_complaints]
        if not tally.replays:
            found.append("nothing was compared with a plain re-run")
        if not result.totals.get("draft tokens verified"):
            found.append("no draft token was verified")
        if self.kills_expected and not result.kills:
            found.append("no proposer was killed")
        if self.all_kinds_expected:
            missing = {kind for kind, _ in result.missing}
            wanted = [kind.name for kind in KINDS if kind.name not in missing]
            untried = tally.unanswered_kinds(wanted)
            found += [f"not one request was answered of kind: {kind}" for kind in untried]
        return found

    @property
    def passed(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        result, tally = self.result, self.result.tally
        return {
            "passed": self.passed,
            "problems": self.problems,
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "settings": dict(self.settings),
            "seconds": round(result.seconds, 1),
            "requests": {
                "sent": tally.requests,
                "answered": tally.answered,
                "refused as they should be": tally.refused,
                "left by the client": tally.left,
                "failed": tally.num_failures,
            },
            "tokens_told": tally.tokens,
            "slowest_seconds": round(tally.slowest_seconds, 2),
            "places": dict(tally.by_place),
            "kinds": {
                name: {"asked": asked, "answered": tally.answered_by_kind[name]}
                for name, asked in sorted(tally.asked_by_kind.items())
            },
            "not_offered": [[kind, place.value] for kind, place in result.missing],
            "replays": {
                "outputs": dict(tally.replays),
                "tokens": tally.replayed_tokens,
                "unequal": [one.to_json() for one in tally.unequal],
            },
            "kills": dict(result.kills),
            "server": dict(result.totals),
            "rounds_without_drafts": dict(result.off_reasons),
            "trends": [one.to_json() for one in result.trends],
            "at_end": [one.to_json() for one in result.at_end],
            "log_complaints": list(self.log_complaints),
            "failures": [one.to_json() for one in tally.failures],
        }

    def to_markdown(self) -> str:
        return "\n".join(
            [
                "# Endurance",
                "",
                f"`{self.command}`",
                "",
                f"**{'Passed' if self.passed else 'Failed'}.** {self._summary()}",
                "",
                *(f"- {problem}" for problem in self.problems),
                *([""] if self.problems else []),
                *_table(("", ""), {**self.settings, **self.machine, **self.versions}.items()),
                "",
                "## Requests",
                "",
                *_table(("outcome", "requests"), self.to_json()["requests"].items()),
                "",
                *self._kinds(),
                "",
                "## Speculation",
                "",
                *_table(("sum since the server's start", ""), self.result.totals.items()),
                "",
                *_table(("rounds without drafts, because", ""), self.result.off_reasons.items()),
                "",
                "## Held and let go",
                "",
                *self._leaks(),
                "",
            ]
        )

    def _summary(self) -> str:
        result, tally = self.result, self.result.tally
        replays = tally.replays
        return (
            f"{tally.requests} requests in {result.seconds:.0f} s, {tally.num_failures} errors "
            f"that the client did not cause; proposers killed {sum(result.kills.values())} times; "
            f"{sum(replays.values())} outputs ({tally.replayed_tokens} tokens) re-run plainly: "
            f"{replays['equal']} equal, {replays['numerical']} parted at a numerical tie, "
            f"{replays['different']} different. "
            f"{result.totals.get('draft tokens verified', 0)} draft tokens were verified, "
            f"{result.totals.get('draft tokens accepted', 0)} accepted."
        )

    def _kinds(self) -> list[str]:
        tally = self.result.tally
        rows = [
            (name, asked, tally.answered_by_kind[name])
            for name, asked in sorted(tally.asked_by_kind.items())
        ]
        lines = [
            "A request asks for several kinds at once. Not answered are those whose client left.",
            "",
            *_table(("kind", "asked", "answered"), rows),
        ]
        for kind, place in self.result.missing:
            lines.append(f"\nNot offered: {kind} at {place.value}.")
        return lines

    def _leaks(self) -> list[str]:
        tolerances = "; ".join(
            f"{_UNITS[name]} {one.share:.0%} and {one.amount:g}" for name, one in TOLERANCES.items()
        )
        return [
            f"Medians of the first and last {PART:.0%} of the load behind its first {WARMUP:.0%}. "
            f"Allowed growth: {tolerances}.",
            "",
            *_table(
                ("process", "measure", "first", "last", "allowed", ""),
                (
                    (
                        one.process,
                        _UNITS[one.measure],
                        f"{one.first:.1f}",
                        f"{one.last:.1f}",
                        f"{one.allowed:.1f}",
                        "" if one.passed else "**grew**",
                    )
                    for one in self.result.trends
                ),
            ),
            "",
            *_table(
                ("at the end", "found", "allowed"),
                ((one.what, f"{one.found:g}", f"{one.allowed:g}") for one in self.result.at_end),
            ),
        ]


def _table(header: Sequence[str], rows: Any) -> list[str]:
    lines = [_row(header), _row(["---"] * len(header))]
    return [*lines, *(_row(row) for row in rows)]


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
