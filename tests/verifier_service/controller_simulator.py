"""A verifier of random rounds: what the controller earns on a load, against what it could earn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from verifier_service.controller import Candidate, Controller
from verifier_service.costs import CostTable
from verifier_service.messages import DraftBlock

Cost = Callable[[int], float]
K = 8

_CPU_ROWS = [1, 5, 8, 16, 32, 64, 128, 256, 512, 1152]
_CPU_MS = [20.0, 24.0, 26.0, 36.0, 50.0, 82.0, 150.0, 290.0, 560.0, 1240.0]


def flat(rows: int) -> float:
    """A GPU far below its knee: 5.2 ms at 1 row, 5.7 at 40."""
    return 5.2e-3 + 1.3e-5 * rows


def cpu(rows: int) -> float:
    """Medians read on the small model's CPU kernels: rises in blocks of rows."""
    padded = -(-rows // 4) * 4 if rows > 8 else rows
    return float(np.interp(padded, _CPU_ROWS, _CPU_MS)) * 1e-3


def linear(rows: int) -> float:
    """Compute-bound: nearly every row costs the same."""
    return 1e-3 + 2e-3 * rows


COSTS: Mapping[str, Cost] = {"flat": flat, "cpu": cpu, "linear": linear}


@dataclass(frozen=True, slots=True)
class Text:
    """How one proposer fares on one sequence now: chance of a block, acceptance of each draft."""

    acceptance: float
    offered: float = 1.0
    match_length: int = 3
    length: int = K


# (step, sequence) -> text for each proposer
Load = Callable[[int, int], Mapping[str, Text]]


def steady(acceptance: float, **more: float) -> Load:
    text = Text(acceptance, **more)  # type: ignore[arg-type]
    return lambda _step, _sequence: {"ngram": text}


@dataclass(slots=True)
class Result:
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    used: dict[tuple[int, str], int] = field(default_factory=dict)

    def rate(self, first: int = 0, last: int | None = None) -> float:
        """Tokens a second over steps first to last."""
        return sum(self.tokens[first:last]) / sum(self.seconds[first:last])

    def drafted_in(self, first: int, last: int | None = None) -> float:
        part = self.drafted[first:last]
        return sum(part) / len(part)


def simulate(
    load: Load,
    cost: Cost,
    *,
    batch: int,
    steps: int,
    wait: Callable[[int], float] = lambda _step: 0.0,
    controller: Controller | None = None,
    noise: float = 0.03,
    pauses: float = 0.0,
    shadow: bool = True,
    lifetime: int = 0,
    seed: int = 1,
) -> Result:
    """Run `steps` steps of `batch` sequences; `lifetime` steps each, 0 for ever."""
    rng = np.random.default_rng(seed)
    clock = np.random.default_rng(seed + 1)
    slowness = np.exp(clock.normal(0.0, noise, steps))
    slowness *= np.where(clock.random(steps) < pauses, 8.0, 1.0)
    profile = {rows: cost(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}
    control = controller or Controller(K, CostTable.from_profile(profile))
    result = Result()
    ids = list(range(batch))
    for step in range(steps):
        ask = control.wanted(batch, K)
        waited = wait(step) if ask else 0.0
        if ask:
            control.observe_wait(waited)
        candidates, texts = [], []
        for row, sequence in enumerate(ids):
            offers = load(step, row)
            texts.append(offers)
            blocks = [
                DraftBlock(name, 10, (0,) * min(text.length, ask), match_length=text.match_length)
                for name, text in offers.items()
                if ask and rng.random() < text.offered
            ]
            candidates.append(Candidate(sequence, blocks, K, 100, ask))
        decisions = control.plan(candidates, other_query_tokens=0, total_context=100 * batch)
        drafted = sum(d.drafted for d in decisions)
        rows = batch + drafted
        seconds = cost(rows) * float(slowness[step])
        emitted = batch
        for row, (candidate, decision) in enumerate(zip(candidates, decisions, strict=True)):
            for block in candidate.blocks:
                taken = decision.block is block
                count = decision.drafted if taken else 1
                right = rng.random(count) < texts[row][block.proposer].acceptance
                accepted = count if right.all() else int(right.argmin())
                if taken:
                    emitted += accepted
                    key = (row, block.proposer)
                    result.used[key] = result.used.get(key, 0) + 1
                    control.observe_round(
                        candidate.sequence_id,
                        block,
                        greedy=True,
                        drafted=count,
                        accepted=accepted,
                    )
                elif shadow:
                    control.observe_shadow(
                        candidate.sequence_id, block, greedy=True, compared=1, matched=accepted
                    )
        control.observe_step(batch, rows, 100 * batch, seconds)
        result.tokens.append(emitted)
        result.seconds.append(seconds + waited)
        result.drafted.append(drafted)
        result.asked.append(ask)
        result.states.append(control.state())
        if lifetime:
            for row in range(batch):
                if (step + row) % lifetime == lifetime - 1:
                    control.close(ids[row])
                    ids[row] += batch
    return result


def expected_rate(
    load: Load, cost: Cost, *, batch: int, drafts: int, steps: int = 1, wait: float = 0.0
) -> float:
    """Tokens a second of verifying `drafts` drafts of each offered block, over `steps` steps.

    Every sequence must always be offered a block, by one proposer.
    """
    tokens = seconds = 0.0
    for step in range(steps):
        tokens += batch
        for row in range(batch):
            for text in load(step, row).values():
                p = text.acceptance
                tokens += sum(p**j for j in range(1, drafts + 1))
        seconds += cost(batch * (1 + drafts)) + (wait if drafts else 0.0)
    return tokens / seconds


def best_fixed(load: Load, cost: Cost, *, batch: int, steps: int = 1, wait: float = 0.0) -> float:
    """The best that one K for everything could give, 0 included."""
    return max(
        expected_rate(load, cost, batch=batch, drafts=k, steps=steps, wait=wait)
        for k in range(K + 1)
    )
