"""What was measured, and the figures made of it.

Knows times, token counts and sums; knows neither how they were taken nor how they are shown.

A *unit* is what is timed in one go: one prompt at one client, a batch of prompts at several. All
rows of a unit are measured one after the other, so a ratio compares neighbours in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from outrider.acceptance import draft_acceptance_rate, mean_acceptance_length


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row's run of one unit. `outputs` are digests of the answers, in the prompts' order.

    `seconds` and `new_tokens` are of the whole load. `steady_seconds` and `steady_tokens` are of
    the part in which all clients were busy, and speeds are made of them; without them (the CPU
    benchmark, older documents) of the whole. `readings` are what else was seen meanwhile, by name.
    """

    row: str
    prompt_set: str
    clients: int
    temperature: float
    repetition: int
    unit: str
    seconds: float
    new_tokens: int
    prompt_tokens: int
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_prompt_tokens: int = 0
    outputs: tuple[str, ...] = ()
    steady_seconds: float | None = None
    steady_tokens: float | None = None
    readings: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.steady_seconds is None) != (self.steady_tokens is None):
            raise ValueError(f"{self.row}, {self.unit}: steady seconds and tokens go together")

    @property
    def counted(self) -> tuple[float, float]:
        """Tokens and seconds that its speed is made of."""
        if self.steady_seconds is None or self.steady_tokens is None:
            return self.new_tokens, self.seconds
        return self.steady_tokens, self.steady_seconds

    def to_json(self) -> dict[str, Any]:
        values = {**asdict(self), "outputs": list(self.outputs)}
        if not self.readings:
            del values["readings"]
        if self.steady_seconds is None:
            del values["steady_seconds"], values["steady_tokens"]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Measurement:
        return cls(**{**values, "outputs": tuple(values["outputs"])})


@dataclass(frozen=True, slots=True)
class CellKey:
    """One place in the table."""

    row: str
    prompt_set: str
    clients: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over repetitions with its spread."""

    median: float
    low: float
    high: float
    repetitions: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A row's figures for a set; `speed` is new tokens a second, prefill included."""

    key: CellKey
    speed: Figure
    steps: int
    drafted: int
    accepted: int
    cached_prompt_tokens: int

    @property
    def mean_acceptance_length(self) -> float:
        return mean_acceptance_length(self.accepted, self.steps)

    @property
    def draft_acceptance_rate(self) -> float:
        return draft_acceptance_rate(self.accepted, self.drafted)


@dataclass(slots=True)
class Measurements:
    """All measurements of a run."""

    items: list[Measurement] = field(default_factory=list)

    def add(self, measurement: Measurement) -> None:
        self.items.append(measurement)

    def cell(self, key: CellKey) -> Cell | None:
        """None where nothing was measured."""
        items = self.of(key)
        if not items:
            return None
        return Cell(
            key=key,
            speed=_figure([tokens_a_second(group) for group in _by_repetition(items).values()]),
            steps=sum(item.steps for item in items),
            drafted=sum(item.drafted for item in items),
            accepted=sum(item.accepted for item in items),
            cached_prompt_tokens=sum(item.cached_prompt_tokens for item in items),
        )

    def ratio(self, key: CellKey, base_row: str) -> Figure | None:
        """Speed of `key` over that of `base_row`, over the units that both have measured.

        Computed inside each repetition, then the median. None where they share no unit.
        """
        return self.ratio_over([key], base_row)

    def ratio_over(self, keys: Sequence[CellKey], base_row: str) -> Figure | None:
        """The same over several cells taken together, for instance one row's over all sets."""
        pairs: dict[int, tuple[list[Measurement], list[Measurement]]] = {}
        for key in keys:
            base = {
                (item.repetition, item.unit): item for item in self.of(_replace_row(key, base_row))
            }
            for item in self.of(key):
                partner = base.get((item.repetition, item.unit))
                if partner is not None:
                    mine, theirs = pairs.setdefault(item.repetition, ([], []))
                    mine.append(item)
                    theirs.append(partner)
        if not pairs:
            return None
        return _figure(
            [tokens_a_second(mine) / tokens_a_second(theirs) for mine, theirs in pairs.values()]
        )

    def same_outputs(self, key: CellKey, base_row: str) -> tuple[int, int]:
        """How many answers equal the base row's for the same unit, and how many were compared."""
        base = {(item.repetition, item.unit): item for item in self.of(_replace_row(key, base_row))}
        same = compared = 0
        for item in self.of(key):
            partner = base.get((item.repetition, item.unit))
            if partner is None:
                continue
            compared += len(item.outputs)
            same += sum(a == b for a, b in zip(item.outputs, partner.outputs, strict=True))
        return same, compared

    def cell_keys(self) -> list[CellKey]:
        """Every cell that was measured, in the order of its first measurement."""
        return list(
            dict.fromkeys(
                CellKey(item.row, item.prompt_set, item.clients, item.temperature)
                for item in self.items
            )
        )

    def of(self, key: CellKey) -> list[Measurement]:
        """All measurements of one cell, in the order they were added."""
        return [
            item
            for item in self.items
            if (item.row, item.prompt_set, item.clients, item.temperature)
            == (key.row, key.prompt_set, key.clients, key.temperature)
        ]


def distinct(items: Iterable[CellKey], of: Callable[[CellKey], Any]) -> list[Any]:
    """The different values of an attribute, in order of appearance."""
    return list(dict.fromkeys(of(item) for item in items))


def tokens_a_second(items: Iterable[Measurement]) -> float:
    """All that was counted over all the time it took."""
    counted = [item.counted for item in items]
    return sum(tokens for tokens, _ in counted) / sum(seconds for _, seconds in counted)


def _replace_row(key: CellKey, row: str) -> CellKey:
    return CellKey(row, key.prompt_set, key.clients, key.temperature)


def _by_repetition(items: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    groups: dict[int, list[Measurement]] = {}
    for item in items:
        groups.setdefault(item.repetition, []).append(item)
    return groups


def _figure(values: Sequence[float]) -> Figure:
    return Figure(median(values), min(values), max(values), len(values))
