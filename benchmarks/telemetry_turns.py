"""Turns of tracing and no tracing: their order, what each one measured, and which are compared.

Knows speeds and modes; knows neither servers nor statistics. Four turns are a quad, ABBA: what
drifts evenly while they last adds to both modes alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Places of a quad's turns that are compared: the other mode next to it, and its own.
_NEIGHBOURS = ((0, 1), (3, 2))
_SAME = (1, 2)
QUAD = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """What was answered in one mode without a break, window after window.

    `seconds`, `tokens` and `answers` (a digest of them) are of each window, `rounds` those with
    drafts, `foreign` the share of the machine that other programs took. `processor_ms` is what each
    service took.
    """

    clients: int
    quad: int
    traced: bool
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    rounds: tuple[int, ...]
    answers: tuple[str, ...]
    foreign: tuple[float, ...]
    processor_ms: Mapping[str, float]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Turn:
        fields: dict[str, Any] = {
            name: tuple(part) if isinstance(part, list) else part for name, part in value.items()
        }
        return cls(**fields)

    @property
    def requests(self) -> int:
        return self.clients * len(self.seconds)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Tokens a second of each window."""
        return tuple(t / s for t, s in zip(self.tokens, self.seconds, strict=True))


@dataclass(frozen=True, slots=True)
class Quad:
    """Four turns over the same prompts, in the order ABBA."""

    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        modes = [turn.traced for turn in self.turns]
        if len(modes) != QUAD or modes != modes[::-1] or modes[0] == modes[1]:
            raise ValueError(f"turns of the modes {modes} are no ABBA")

    def neighbours(self, most: float) -> list[list[float]]:
        """Log ratios, traced over untraced, of windows with the same prompts: of each half.

        Without those from which other programs took more than `most` of the machine.
        """
        return [_ratios(*self._by_mode(pair), most) for pair in _NEIGHBOURS]

    def same_mode(self, most: float) -> list[float]:
        """Log ratios, later over earlier, of the two inner turns: nothing differs but the time."""
        first, second = (self.turns[place] for place in _SAME)
        return _ratios(second, first, most)

    def processor_ms(self) -> dict[str, float]:
        """By service, what a traced request took more than an untraced one."""
        requests = sum(turn.requests for turn in self.turns if turn.traced)
        names = self.turns[0].processor_ms
        return {
            name: sum(turn.processor_ms[name] * (1 if turn.traced else -1) for turn in self.turns)
            / requests
            for name in names
        }

    def other_answers(self) -> int:
        """How many pairs of windows gave other tokens in one mode than in the other."""
        halves = [self._by_mode(pair) for pair in _NEIGHBOURS]
        return sum(_differing(one.answers, other.answers) for one, other in halves)

    def other_rounds(self) -> int:
        """How many verified drafts in more rounds in one mode than in the other."""
        halves = [self._by_mode(pair) for pair in _NEIGHBOURS]
        return sum(_differing(one.rounds, other.rounds) for one, other in halves)

    def _by_mode(self, places: Sequence[int]) -> tuple[Turn, Turn]:
        """The traced one and the untraced one."""
        one, other = (self.turns[place] for place in places)
        return (one, other) if one.traced else (other, one)


def orders(seed: int) -> Iterator[tuple[bool, ...]]:
    """Which of a quad's turns are traced, for ever: drawn, but as many of a pair begin traced."""
    draw = random.Random(seed)
    while True:
        begins = [True, False]
        draw.shuffle(begins)
        for traced in begins:
            yield (traced, not traced, not traced, traced)


def quads_of(turns: Sequence[Turn], clients: int) -> list[Quad]:
    """The quads that were finished at so many clients, in order."""
    by_number: dict[int, list[Turn]] = {}
    for turn in turns:
        if turn.clients == clients:
            by_number.setdefault(turn.quad, []).append(turn)
    return [Quad(tuple(found)) for found in by_number.values() if len(found) == QUAD]


def _ratios(above: Turn, below: Turn, most: float) -> list[float]:
    windows = zip(above.speeds, below.speeds, above.foreign, below.foreign, strict=True)
    return [math.log(a / b) for a, b, *foreign in windows if max(foreign) <= most]


def _differing(one: Sequence[object], other: Sequence[object]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))
