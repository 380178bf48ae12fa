"""What the benchmark asks of every system it compares.

Knows the shape of the work and of the answer; the systems themselves are in
transformers_system.py, outrider_system.py and peer_system.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts of several clients: each client sends its next one when it has its answer.

    `clients` None: one client for each prompt. The n-th answer has exactly `lengths[n]` tokens
    unless `stop_at_eos`: equal work for all systems. `seed` is the first prompt's; the n-th prompt
    samples with `seed` + n.
    """

    prompts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    temperature: float
    seed: int
    stop_at_eos: bool = False
    clients: int | None = None

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.prompts):
            raise ValueError(f"{len(self.lengths)} lengths for {len(self.prompts)} prompts")

    @property
    def at_once(self) -> int:
        """How many prompts are being answered while there are enough."""
        return len(self.prompts) if self.clients is None else min(self.clients, len(self.prompts))


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` from the first request sent to the last answer received.

    `steady_seconds` and `steady_tokens` are those of the part in which all clients were busy, as
    steady.py counts them; None where nobody took down when each request was sent and answered.
    `readings` are what else was seen meanwhile, by name.
    """

    seconds: float
    outputs: tuple[tuple[int, ...], ...]
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_prompt_tokens: int = 0
    steady_seconds: float | None = None
    steady_tokens: float | None = None
    readings: Mapping[str, float] = field(default_factory=dict)

    @property
    def new_tokens(self) -> int:
        return sum(len(output) for output in self.outputs)


class System(Protocol):
    """One way of answering; a call blocks until all answers are there."""

    def generate(self, work: Work) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, or a part of it.

    `clients` and `temperatures` are those it is measured at. Slow rows whose speed hardly depends
    on the prompt take only the first `units` units of a set; rows that only give context are
    measured `once`, in the first repetition.
    """

    name: str
    system: System
    clients: tuple[int, ...]
    temperatures: tuple[float, ...]
    units: int | None = None
    once: bool = False


# Called with one line of progress.
Say = Callable[[str], None]


def digest(output: Sequence[int]) -> str:
    """A short name of an answer, to compare answers without keeping them."""
    return hashlib.sha256(",".join(map(str, output)).encode()).hexdigest()[:16]
