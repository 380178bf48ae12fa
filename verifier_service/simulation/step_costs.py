"""What steps cost in a recording: a curve over rows for each number of sequences, and asking.

Knows recorded seconds; knows no controller. It is deliberately not the controller's own table: that
one learns while it decides, this one has seen the whole recording.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np

from verifier_service.cost_profile import Floats, never_falling
from verifier_service.simulation.recording import Header, RecordedStep

# The profile counts as so many steps at each of its counts; steps of one count as one.
_PROFILE_WEIGHT = 2.0
# A count of rows is taken at its median where at least so many steps had it.
_LEAST_STEPS = 2
# Residuals beyond this factor are pauses of the machine: kept, but no larger.
_WORST = 3.0


class StepCost(Protocol):
    """Prices a step without a model."""

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        """Seconds of a step of `rows` query tokens over `context` tokens, asking aside."""


@dataclass(frozen=True, slots=True)
class RecordedCosts:
    """Fitted costs; see `fit_costs`.

    `noise` are ratios of the steps' measured seconds to the curve's, in their order; `asking` the
    seconds that asking added, of the steps that asked.
    """

    curves: dict[int, tuple[Floats, Floats, float]]
    attention: tuple[float, float]
    noise: tuple[float, ...]
    asking: tuple[float, ...]

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        """Seconds of a step of `rows` query tokens over `context` tokens, asking aside."""
        octave = sequences.bit_length()
        nearest = min(self.curves, key=lambda known: (abs(known - octave), known))
        knots, seconds, at = self.curves[nearest]
        result = float(np.interp(rows, knots, seconds))
        beyond = rows - float(knots[-1])
        if beyond > 0.0:
            result += beyond * _slope(knots, seconds)
        per_context, per_row = self.attention
        moved = (context - at) * (per_context + per_row * rows / max(sequences, 1))
        return max(result + moved, 0.2 * result)


def fit_costs(header: Header, steps: Sequence[RecordedStep]) -> RecordedCosts:
    """Curves from a recording's steps without prefill, what its header profiled filling the gaps.

    For each power of two of sequences: the median of each count of rows, corrected to the mean
    context, never falling. The profile's shape stands in, scaled to what was measured, where a
    count was not. All seconds contain what a step takes around its forward without asking.
    """
    decoding = [step for step in steps if step.prefill == 0 and step.rounds]
    around = _medians(decoding, asked=False) or _medians(decoding, asked=True)
    by_octave: dict[int, list[RecordedStep]] = defaultdict(list)
    for step in decoding:
        by_octave[_octave(step)].append(step)
    curves = {
        octave: _curve(header, group, _of(around, octave)) for octave, group in by_octave.items()
    }
    if not curves:
        knots, seconds = _profile(header)
        curves = {1: (knots, seconds, float(header.context))}
    fitted = RecordedCosts(curves, header.attention, (), ())
    noise = [
        min((step.seconds + _of(around, _octave(step))) / _price(fitted, step), _WORST)
        for step in decoding
    ]
    asking = [max(step.around - _of(around, _octave(step)), 0.0) for step in decoding if step.asked]
    return RecordedCosts(curves, header.attention, tuple(noise), tuple(asking))


def _octave(step: RecordedStep) -> int:
    return len(step.rounds).bit_length()


def _price(costs: RecordedCosts, step: RecordedStep) -> float:
    return costs.seconds(step.rows, len(step.rounds), step.context)


def _medians(steps: Sequence[RecordedStep], *, asked: bool) -> dict[int, float]:
    """Median seconds around the forward by octave of sequences; waiting is no part of it."""
    groups: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        if step.asked is asked:
            groups[_octave(step)].append(step.around - step.waited)
    return {octave: median(values) for octave, values in groups.items()}


def _of(known: dict[int, float], octave: int) -> float:
    if not known:
        return 0.0
    return known[min(known, key=lambda other: abs(other - octave))]


def _profile(header: Header) -> tuple[Floats, Floats]:
    counts = sorted(header.profile)
    values = never_falling([header.profile[count] for count in counts])
    return np.array(counts, dtype=np.float64), np.array(values)


def _curve(
    header: Header, steps: Sequence[RecordedStep], around: float
) -> tuple[Floats, Floats, float]:
    """Knots, their seconds, and the context at which they stand."""
    at = sum(step.context for step in steps) / len(steps)
    per_context, per_row = header.attention
    measured: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        slope = per_context + per_row * step.rows / len(step.rounds)
        measured[step.rows].append(step.seconds + around - (step.context - at) * slope)
    points = {
        rows: (median(values), float(len(values)))
        for rows, values in measured.items()
        if len(values) >= _LEAST_STEPS
    } or {rows: (median(values), float(len(values))) for rows, values in measured.items()}
    knots, seconds = _profile(header)
    # How much slower these steps are than the profile says, at the counts that were measured.
    weights = [weight for _, weight in points.values()]
    ratios = [value / _extended(knots, seconds, rows) for rows, (value, _) in points.items()]
    scale = float(np.average(ratios, weights=weights))
    first = min(points)
    for count in knots.astype(int).tolist():
        if count not in points and count > first:
            points[count] = (scale * header.profile[count], _PROFILE_WEIGHT)
    counts = sorted(points)
    values = never_falling([points[n][0] for n in counts], [points[n][1] for n in counts])
    return np.array(counts, dtype=np.float64), np.array(values), at


def _extended(knots: Floats, seconds: Floats, rows: int) -> float:
    beyond = max(rows - float(knots[-1]), 0.0)
    return float(np.interp(rows, knots, seconds)) + beyond * _slope(knots, seconds)


def _slope(knots: Floats, seconds: Floats) -> float:
    """Seconds for each row beyond the last knot: the slope of the upper half of the curve."""
    if len(knots) == 1:
        return float(seconds[0] / knots[0])
    middle = (len(knots) - 1) // 2
    return float((seconds[-1] - seconds[middle]) / (knots[-1] - knots[middle]))
