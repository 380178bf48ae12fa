"""Microseconds of the controller's own work in a step, by how many sequences it decides for.

    python -m benchmarks.controller_cost

Knows the calls that a step makes of the controller; runs no model. Blocks of eight drafts for
every sequence, eight in ten of them right, on a device where drafts pay.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from verifier_service.controller import Candidate, Controller
from verifier_service.costs import CostTable
from verifier_service.messages import DraftBlock

K = 8
_PROFILE = {1: 5.2e-3, 2: 5.2e-3, 40: 5.7e-3, 640: 11.8e-3, 1152: 20e-3}
_CONTEXT, _ATTENTION = 256, (1e-9, 1e-10)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one step: asking and planning, learning its time, learning all its rounds."""

    plan: float
    step: float
    rounds: float


def measure(sequences: int, steps: int, seed: int = 1) -> Spent:
    """A low percentile of each part over `steps` steps: what it takes undisturbed."""
    rng = random.Random(seed)
    controller = Controller(K, CostTable.from_profile(_PROFILE, _CONTEXT, _ATTENTION))
    spent = [_one(controller, sequences, rng) for _ in range(steps)][steps // 5 :]
    low = len(spent) // 8
    return Spent(
        sorted(one.plan for one in spent)[low],
        sorted(one.step for one in spent)[low],
        sorted(one.rounds for one in spent)[low],
    )


def _one(controller: Controller, sequences: int, rng: random.Random) -> Spent:
    candidates = [
        Candidate(i, [DraftBlock("ngram", 300, (0,) * K, match_length=3)], K, 300, K)
        for i in range(sequences)
    ]
    context = 300 * sequences
    began = time.perf_counter()
    for _ in range(sequences):
        controller.wanted(sequences, K)
    decisions = controller.plan(candidates, total_context=context)
    planned = time.perf_counter()
    rows = sequences + sum(decision.drafted for decision in decisions)
    seconds = controller.costs.seconds(rows, sequences, context) * rng.lognormvariate(0.0, 0.03)
    outcomes = [_accepted(decision.drafted, rng) for decision in decisions]
    begun = time.perf_counter()
    controller.observe_step(sequences, rows, context, seconds)
    learnt = time.perf_counter()
    for candidate, decision, accepted in zip(candidates, decisions, outcomes, strict=True):
        if decision.block is not None:
            controller.observe_round(
                candidate.sequence_id,
                decision.block,
                greedy=True,
                drafted=decision.drafted,
                accepted=accepted,
            )
    ended = time.perf_counter()
    controller.observe_wait(0.0)
    return Spent(planned - began, learnt - begun, ended - learnt)


def _accepted(drafted: int, rng: random.Random) -> int:
    count = 0
    while count < drafted and rng.random() < 0.8:
        count += 1
    return count


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controller_cost")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args(arguments)
    table = Table(title="microseconds of a step")
    for heading in ("sequences", "plan", "learn its time", "learn its rounds"):
        table.add_column(heading, justify="right")
    for sequences in options.sequences:
        spent = measure(sequences, options.steps)
        parts = (spent.plan, spent.step, spent.rounds)
        table.add_row(str(sequences), *(f"{part * 1e6:.0f}" for part in parts))
    (console or Console()).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
