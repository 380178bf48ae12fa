"""Where two outputs part, and whether rounding alone explains it.

Knows the target only as a function from ids to float32 logits, computed without Outrider, and the
noise of the coupled rule (outrider/coupling.py). The score of a token at a position is its logit
over the temperature plus the shared Gumbel noise; at temperature 0 it is the logit. The token of
the highest score is the right one.

A difference is *numerical* only where the scores of the right token and of both candidates lie
within `TOLERANCE` of each other: sums in another order may then choose either. Anything else is a
failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.coupling import gumbel

TOLERANCE = 1e-4

Logits = npt.NDArray[np.float32]


class Target(Protocol):
    """The target model, computed plainly."""

    def logits(self, ids: Sequence[int], first: int) -> Logits:
        """Logits [len(ids) - first + 1, V] of the tokens after ids[:first], ..., ids[:]."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Output position (0 is the first new token), the two tokens there and their scores.

    A token is -1 and its score None where that output had ended. `gap` is the distance from the
    highest score to the lower candidate's; None where an output had ended.
    """

    position: int
    expected: int
    got: int
    expected_score: float | None
    got_score: float | None
    gap: float | None

    @property
    def numerical(self) -> bool:
        return self.gap is not None and self.gap < TOLERANCE


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """The first position where the outputs differ; None where they are equal."""
    for position, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return position
    return None if len(expected) == len(got) else min(len(expected), len(got))


def compare(
    target: Target,
    prompt: Sequence[int],
    expected: Sequence[int],
    got: Sequence[int],
    *,
    temperature: float,
    seed: int,
) -> Divergence | None:
    """None where the outputs are equal, else their first difference with its scores."""
    position = first_difference(expected, got)
    if position is None:
        return None
    if position >= min(len(expected), len(got)):
        return Divergence(
            position, _token(expected, position), _token(got, position), None, None, None
        )
    prefix = [*prompt, *expected[:position]]
    row = scores(target.logits(prefix, len(prefix)), temperature, seed, len(prefix))[0]
    return _divergence(row, position, expected[position], got[position])


def check_plain(
    target: Target,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    temperature: float,
    seed: int,
) -> list[Divergence]:
    """Every position where `output` is not the right token given its own prefix.

    One teacher-forced forward: this is how plain decoding itself is held against a model that
    shares no code with the verifier. `expected` is the right token.
    """
    ids = [*prompt, *output[:-1]]
    rows = scores(target.logits(ids, len(prompt)), temperature, seed, len(prompt))
    right = rows.argmax(axis=1)
    return [
        _divergence(rows[position], position, int(right[position]), token)
        for position, token in enumerate(output)
        if token != right[position]
    ]


def scores(
    logits: Logits, temperature: float, seed: int, first_position: int
) -> npt.NDArray[np.float64]:
    """Scores [rows, V]; row i chooses the token at absolute position first_position + i."""
    values = logits.astype(np.float64)
    if temperature == 0:
        return values
    positions = first_position + np.arange(len(values))
    noise = gumbel(seed, positions, np.arange(values.shape[1]))
    return values / temperature + noise


def _divergence(row: npt.NDArray[np.float64], position: int, expected: int, got: int) -> Divergence:
    pair = float(row[expected]), float(row[got])
    return Divergence(position, expected, got, *pair, gap=float(row.max()) - min(pair))


def _token(output: Sequence[int], position: int) -> int:
    return output[position] if position < len(output) else -1
