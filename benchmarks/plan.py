"""In which order the rows are measured, and when to stop.

Knows rows, sets and the time budget; neither what the rows are nor what becomes of the figures.

A sweep is one set at one number of clients and one temperature. Inside a sweep every unit is
measured by all rows in turn, and the row that starts rotates: what the machine does meanwhile
hits all rows alike. The first repetition is always done in full; later ones while time is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

from benchmarks.measurements import Measurement
from benchmarks.prompts import Prompt
from benchmarks.systems import Row, Work, digest


@dataclass(frozen=True, slots=True)
class Sweep:
    prompt_set: str
    clients: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Unit:
    """Prompts that are measured together."""

    name: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`prompts` holds enough of each set for all clients; `minutes` is the budget.

    Several clients send `prompts_per_client` each on average, taking the next as soon as one is
    answered, and their answers differ in length, as answers do: equally long ones would begin and
    end together in plain decoding alone. The set starts anew where it is too short.

    `even_lengths` makes all answers equally long nevertheless; `prompts_at` says how many prompts
    each client sends at some numbers of clients. With `hard_deadline` not even the first
    repetition goes on when the time is over.
    """

    rows: tuple[Row, ...]
    prompts: Mapping[str, Sequence[Prompt]]
    clients: tuple[int, ...]
    temperatures: tuple[float, ...]
    prompts_per_set: int
    new_tokens: int
    repetitions: int
    minutes: float
    seed: int = 1
    stop_at_eos: bool = False
    prompts_per_client: int = 3
    prompts_at: Mapping[int, int] = field(default_factory=dict)
    even_lengths: bool = False
    hard_deadline: bool = False

    def sweeps(self) -> list[Sweep]:
        return [
            Sweep(prompt_set, clients, temperature)
            for temperature in self.temperatures
            for prompt_set in self.prompts
            for clients in self.clients
        ]

    def units(self, sweep: Sweep) -> list[Unit]:
        """One prompt each at one client; all prompts of all clients at several."""
        prompts = self.prompts[sweep.prompt_set]
        if sweep.clients == 1:
            return [Unit(prompt.name, (prompt,)) for prompt in prompts[: self.prompts_per_set]]
        count = sweep.clients * self.prompts_at.get(sweep.clients, self.prompts_per_client)
        batch = tuple(islice(cycle(prompts), count))
        return [Unit(f"{count} prompts from {batch[0].name}", batch)]

    def rows_of(self, sweep: Sweep, repetition: int) -> list[Row]:
        return [
            row
            for row in self.rows
            if sweep.clients in row.clients
            and sweep.temperature in row.temperatures
            and not (row.once and repetition > 0)
        ]

    def generations(self, sweep: Sweep, repetition: int) -> Iterator[tuple[Row, Unit]]:
        rows = self.rows_of(sweep, repetition)
        for index, unit in enumerate(self.units(sweep)):
            start = (index + repetition) % len(rows) if rows else 0
            for row in rows[start:] + rows[:start]:
                if row.units is None or index < row.units:
                    yield row, unit


@dataclass(frozen=True, slots=True)
class Observer:
    """Told what happens: before a measurement, after it, and after each sweep."""

    starting: Callable[[Sweep, Row, int], None]
    measured: Callable[[Measurement], None]
    swept: Callable[[Sweep, int], None]


def execute(plan: Plan, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
    """Measure until the plan or the time is exhausted; `observer` gets every measurement."""
    deadline = clock() + 60 * plan.minutes
    lasted: dict[Sweep, float] = {}
    for repetition in range(plan.repetitions):
        for sweep in plan.sweeps():
            bounded = repetition > 0 or plan.hard_deadline
            if bounded and clock() + lasted.get(sweep, 0.0) > deadline:
                continue
            began = clock()
            for row, unit in plan.generations(sweep, repetition):
                observer.starting(sweep, row, repetition)
                observer.measured(measure(plan, sweep, row, unit, repetition))
            lasted[sweep] = clock() - began
            observer.swept(sweep, repetition)


def lengths(new_tokens: int, clients: int, prompts: int) -> tuple[int, ...]:
    """New tokens of each answer: all `new_tokens`, or from 1/2 to 11/8 of it at several clients."""
    if clients == 1:
        return (new_tokens,) * prompts
    return tuple(max(1, new_tokens * (4 + 5 * n % 8) // 8) for n in range(prompts))


def measure(plan: Plan, sweep: Sweep, row: Row, unit: Unit, repetition: int) -> Measurement:
    """Time one row on one unit."""
    varied = 1 if plan.even_lengths else sweep.clients
    wanted = lengths(plan.new_tokens, varied, len(unit.prompts))
    answer = row.system.generate(
        Work(
            prompts=tuple(prompt.token_ids for prompt in unit.prompts),
            lengths=wanted,
            temperature=sweep.temperature,
            seed=plan.seed,
            stop_at_eos=plan.stop_at_eos,
            clients=sweep.clients,
        )
    )
    if not plan.stop_at_eos:
        _require_equal_work(row, unit, wanted, [len(out) for out in answer.outputs])
    return Measurement(
        row=row.name,
        prompt_set=sweep.prompt_set,
        clients=sweep.clients,
        temperature=sweep.temperature,
        repetition=repetition,
        unit=unit.name,
        seconds=answer.seconds,
        new_tokens=answer.new_tokens,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in unit.prompts),
        steps=answer.steps,
        drafted=answer.drafted,
        accepted=answer.accepted,
        cached_prompt_tokens=answer.cached_prompt_tokens,
        outputs=tuple(digest(output) for output in answer.outputs),
        steady_seconds=answer.steady_seconds,
        steady_tokens=answer.steady_tokens,
        readings=answer.readings,
    )


def _require_equal_work(row: Row, unit: Unit, wanted: Sequence[int], got: Sequence[int]) -> None:
    if list(got) != list(wanted):
        raise RuntimeError(
            f"{row.name} answered {unit.name} with {list(got)} tokens instead of {list(wanted)}"
        )
