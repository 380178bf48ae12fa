"""The numbers behind the controller's decisions, as plain data: for logs, metrics and spans.

Knows no controller: whoever shows a decision takes one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from speculation.v1 import verifier_pb2

from verifier_service.plain_periods import MeasuredGain


def kind_of(state: str) -> str:
    """`on`, or `off: ` and why, without figures."""
    return state if state == "on" else ": ".join(state.split(": ", 2)[:2])


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the controller decided last and why; times in milliseconds.

    `state` is `on`, or `off: ` and why. `plain_step_ms` is what a step without drafts of as many
    sequences takes, `gain` how much more a second emits by the last plan (0.2: a fifth more),
    `average_gain` the same over the last steps with what asking costs taken off,
    `tokens_per_second` the last plan's rate, `ceiling` the K that held for it. `draft_wait_ms` is
    what asking adds to a step; `probe_share` the share of time that probing may take now,
    `probes` those of the last plan. `measured` is what plain periods showed. `acceptance` has the
    estimated rates by position: {'proposer/greedy': [K rates]}. `hold_ms` is how long the device
    stands still where a step is planned with drafts, `look_ms` where it is only looked whether
    there are any, and `block_tokens` what a block then saves, in tokens; of as many sequences.
    """

    state: str
    ceiling: int = 0
    plain_step_ms: float = 0.0
    gain: float = 0.0
    average_gain: float = 0.0
    tokens_per_second: float = 0.0
    draft_wait_ms: float = 0.0
    probes: int = 0
    probe_share: float = 0.0
    measured: MeasuredGain = field(default_factory=MeasuredGain)
    acceptance: Mapping[str, list[float]] = field(default_factory=dict)
    hold_ms: float = 0.0
    look_ms: float = 0.0
    block_tokens: float = 0.0

    @property
    def kind(self) -> str:
        """The state without its figures: what makes two states differ in kind."""
        return kind_of(self.state)

    def attributes(self) -> dict[str, str | int | float]:
        """As a span's attributes take it: `outrider.speculation.` and the field's name."""
        return {
            f"outrider.speculation.{name}": getattr(self, name)
            for name in (
                "state",
                "ceiling",
                "plain_step_ms",
                "gain",
                "average_gain",
                "tokens_per_second",
                "draft_wait_ms",
            )
        }

    def to_proto(self) -> verifier_pb2.SpeculationFigures:
        return verifier_pb2.SpeculationFigures(
            ceiling=self.ceiling,
            plain_step_ms=self.plain_step_ms,
            gain=self.gain,
            average_gain=self.average_gain,
            tokens_per_second=self.tokens_per_second,
            draft_wait_ms=self.draft_wait_ms,
            probe_share=self.probe_share,
            measured_gain=self.measured.gain,
            measured_gain_error=self.measured.error,
            plain_periods=self.measured.periods,
        )

    def figures(self) -> str:
        """The numbers on one line, for a log."""
        text = (
            f"average gain {self.average_gain:+.1%}, plain step {self.plain_step_ms:.2f} ms, "
            f"asking for drafts {self.draft_wait_ms:.2f} ms a step, K <= {self.ceiling}"
        )
        if self.measured.periods:
            text += (
                f", measured gain {self.measured.gain:+.1%} (±{self.measured.error:.1%}, "
                f"{self.measured.periods} plain periods)"
            )
        if self.hold_ms:
            text += (
                f", planned with drafts {self.hold_ms:.2f} ms of standing still (a look "
                f"{self.look_ms:.2f}), where a block saves {self.block_tokens:.2f} tokens"
            )
        for name, rates in self.acceptance.items():
            shown = " ".join(f"{rate:.2f}" for rate in rates[: self.ceiling])
            text += f", {name} accepts {shown}"
        return text
