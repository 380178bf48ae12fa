"""What attention adds to a step: fitted from how steps of equal row counts differ in context.

Knows contexts, rows of a sequence and seconds; does not know the curve over rows.
"""

from __future__ import annotations

# Observations that the fit remembers, and the prior that holds it where it was measured: so many
# of them that differed by so many context tokens of each sequence.
_MEMORY, _PRIOR, _CONTEXT = 512.0, 16.0, 128.0


class AttentionCost:
    """Seconds for each context token, and for each (context token, row of its sequence).

    Only deviations within one count of rows are learnt from, so that what the curve learns cannot
    hide them. Neither slope falls below 0.
    """

    __slots__ = ("_cross", "_means", "_prior", "_square", "slopes")

    def __init__(self, measured: tuple[float, float]) -> None:
        self.slopes = measured
        self._prior = measured
        # Mean (context, seconds) and observations of each count, and moments of the deviations.
        self._means: dict[int, tuple[float, float, float]] = {}
        self._square = [0.0, 0.0, 0.0]
        self._cross = [0.0, 0.0]

    def learn(
        self, knot: int, query_tokens: int, sequences: int, context: float, seconds: float
    ) -> None:
        """Take in a step of `query_tokens` rows that was counted at `knot`."""
        depth = query_tokens / sequences
        keep = 1.0 - 1.0 / _MEMORY
        mean_context, mean_seconds, seen = self._means.get(knot, (0.0, 0.0, 0.0))
        weight = 1.0 / (min(seen, _MEMORY) + 1.0)
        moved, excess = context - mean_context, seconds - mean_seconds
        self._means[knot] = (
            mean_context + weight * moved,
            mean_seconds + weight * excess,
            seen + 1.0,
        )
        square, cross, damp = self._square, self._cross, 1.0 - weight
        square[0] = square[0] * keep + damp * moved * moved
        square[1] = square[1] * keep + damp * moved * moved * depth
        square[2] = square[2] * keep + damp * moved * moved * depth * depth
        cross[0] = cross[0] * keep + damp * moved * excess
        cross[1] = cross[1] * keep + damp * moved * depth * excess
        self.slopes = _nonnegative_fit(
            square, cross, _PRIOR * (_CONTEXT * sequences) ** 2, self._prior
        )


def _nonnegative_fit(
    square: list[float], cross: list[float], ridge: float, prior: tuple[float, float]
) -> tuple[float, float]:
    """Two-variable regression, drawn to `prior`, with both coefficients at least 0."""
    a, b, c = square[0] + ridge, square[1], square[2] + ridge
    x, y = cross[0] + ridge * prior[0], cross[1] + ridge * prior[1]
    determinant = a * c - b * b
    first = (c * x - b * y) / determinant
    second = (a * y - b * x) / determinant
    if first < 0.0:
        return 0.0, max(y / c, 0.0)
    if second < 0.0:
        return max(x / a, 0.0), 0.0
    return first, second
