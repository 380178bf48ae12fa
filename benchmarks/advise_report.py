"""The page of the advisor's check: measured and predicted counts, and how far they are apart.

Knows counts; does not know how they came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider.acceptance import draft_acceptance_rate, mean_acceptance_length

# Largest relative error of acceptance length and rate that passes.
LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method at one temperature: `steps`, `drafted`, `accepted` and `histogram`, three times.

    `predicted` is from token ids, `predicted_from_text` from text that was tokenized again.
    """

    method: str
    temperature: float
    num_speculative_tokens: int
    requests: int
    output_tokens: int
    measured: dict[str, Any]
    predicted: dict[str, Any]
    predicted_from_text: dict[str, Any]

    @property
    def error(self) -> float:
        """Largest relative error of acceptance length and rate, from token ids."""
        return _error(self.measured, self.predicted)

    @property
    def text_error(self) -> float:
        return _error(self.measured, self.predicted_from_text)

    def line(self) -> str:
        return (
            f"{self.method} T={self.temperature:g}: measured {_shown(self.measured)}, predicted "
            f"{_shown(self.predicted)} ({self.error:.2%}), from text "
            f"{_shown(self.predicted_from_text)} ({self.text_error:.2%})"
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error, "text_error": self.text_error}


def within(comparison: Comparison) -> bool:
    """Whether both predictions are within the limit, and something was drafted at all."""
    return (
        comparison.measured["drafted"] > 0
        and comparison.error <= LIMIT
        and comparison.text_error <= LIMIT
    )


def page(report: dict[str, Any], comparisons: Sequence[Comparison]) -> str:
    """The report as Markdown."""
    machine = "; ".join(f"{key} {value}" for key, value in report["machine"].items())
    version = "; ".join(f"{key} {value}" for key, value in report["versions"].items())
    prompts = "; ".join(f"{name}: {', '.join(of)}" for name, of in report["prompts"].items())
    exact = sum(comparison.measured == comparison.predicted for comparison in comparisons)
    met = sum(map(within, comparisons))
    first = comparisons[0]
    rows = [
        f"| {c.method} | {c.temperature:g} | {_shown(c.measured)} | {_shown(c.predicted)} | "
        f"{c.error:.2%} | {_shown(c.predicted_from_text)} | {c.text_error:.2%} |"
        for c in comparisons
    ]
    return "\n".join(
        [
            "# What `outrider advise` predicts, and what the verifier accepted",
            "",
            f"`{report['command']}`",
            "",
            f"**{met} of {len(comparisons)} within {LIMIT:.0%}** (the bar, for acceptance "
            f"length and acceptance rate); in {exact} of {len(comparisons)} every count is equal, "
            "the histogram included.",
            "",
            f"- Machine: {machine}",
            f"- Versions: {version}",
            f"- {report['model']}, K = {first.num_speculative_tokens}, {first.requests} prompts "
            f"a row, adaptive verification off. Prompts: {prompts}",
            "",
            "| method | T | measured | predicted from ids | error | from text | error |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "A cell: mean acceptance length, draft acceptance rate, accepted of drafted in steps.",
            "",
            "## How to read this",
            "",
            "- Verifier and proposers are processes of their own and speak gRPC; requests come one "
            "after the other. The suffix proposer's memory grows with them, and so does the "
            "replay's.",
            "- Predicted: `outrider advise` on recorded prompts and outputs, without the model. "
            "*Error*: the larger of the relative errors of acceptance length and rate.",
            "- *From text*: the same traffic as messages and text; tokenizing an answer again need "
            "not give the tokens that the target emitted.",
            "- With the controller on, a verifier verifies fewer drafts than these where they do "
            "not pay: that is not predicted here.",
            "",
        ]
    )


def _error(measured: dict[str, Any], predicted: dict[str, Any]) -> float:
    pairs = [(_length(measured), _length(predicted)), (_rate(measured), _rate(predicted))]
    return max(abs(p - m) / m if m else float(p != m) for m, p in pairs)


def _length(counts: dict[str, Any]) -> float:
    return mean_acceptance_length(counts["accepted"], counts["steps"])


def _rate(counts: dict[str, Any]) -> float:
    return draft_acceptance_rate(counts["accepted"], counts["drafted"])


def _shown(counts: dict[str, Any]) -> str:
    return (
        f"{_length(counts):.3f}, {_rate(counts):.1%}, {counts['accepted']} of "
        f"{counts['drafted']} in {counts['steps']}"
    )
