"""A recording under several policies: no drafts, each fixed K, and the controller.

Knows how a policy is made and what they are compared by; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outrider.draft_schedule import DraftSchedule
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.simulation.recording import Header, Recording
from verifier_service.simulation.replay import Asking, Replayed, replay
from verifier_service.simulation.step_costs import RecordedCosts, StepCost, fit_costs
from verifier_service.simulation.traces import Trace, traces_of


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens a second without drafts, with each fixed K, and as the controller decides."""

    plain: Replayed
    fixed: dict[int, Replayed]
    controller: Replayed

    @property
    def best_k(self) -> int:
        """The K that was fastest, 0 for none."""
        rates = {0: self.plain.rate, **{k: run.rate for k, run in self.fixed.items()}}
        return max(rates, key=lambda k: (rates[k], -k))

    @property
    def best(self) -> Replayed:
        return self.fixed[self.best_k] if self.best_k else self.plain

    @property
    def against_plain(self) -> float:
        return self.controller.rate / self.plain.rate

    @property
    def against_best(self) -> float:
        return self.controller.rate / self.best.rate


@dataclass(frozen=True, slots=True)
class Load:
    """Everything of a load that is the same for every policy.

    Without `drain` a run ends as soon as fewer sequences are left than run at a time.
    """

    header: Header
    traces: list[Trace]
    cost: StepCost
    concurrency: int
    noise: tuple[float, ...] = ()
    asking: Asking = lambda _step: 0.0
    drain: bool = True

    def run(self, controller: Controller) -> Replayed:
        return replay(
            self.traces,
            controller,
            self.cost,
            ceiling=self.header.num_speculative_tokens,
            concurrency=self.concurrency,
            noise=self.noise,
            asking=self.asking,
            drain=self.drain,
        )


def load_of(recording: Recording) -> Load:
    """The load of a recording, priced by what its own steps took. Raises ValueError.

    As many sequences run at once as did at most in the recording.
    """
    traces = traces_of(recording.steps, recording.header.num_speculative_tokens)
    if not traces:
        raise ValueError("the recording has no decoding step: nothing can be replayed")
    costs: RecordedCosts = fit_costs(recording.header, recording.steps)
    asking = costs.asking
    return Load(
        header=recording.header,
        traces=traces,
        cost=costs,
        concurrency=max(len(step.rounds) for step in recording.steps),
        noise=costs.noise,
        asking=lambda step: asking[step % len(asking)] if asking else 0.0,
    )


def compare(
    load: Load,
    *,
    fixed: Iterable[int] | None = None,
    schedule: DraftSchedule | None = None,
) -> Comparison:
    """Replay a load without drafts, with each K of `fixed` (None: all), and adaptively.

    `schedule` holds for the adaptive run.
    """
    ceiling = load.header.num_speculative_tokens
    counts = range(1, ceiling + 1) if fixed is None else fixed
    return Comparison(
        plain=load.run(Controller(0, _table(load.header))),
        fixed={k: load.run(Controller(k, _table(load.header), adaptive=False)) for k in counts},
        controller=load.run(Controller(ceiling, _table(load.header), schedule=schedule)),
    )


def _table(header: Header) -> CostTable:
    return CostTable.from_profile(header.profile, header.context, header.attention)
