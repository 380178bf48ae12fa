"""How long one step of the target takes, by how many sequences it serves.

Knows which curve answers for a number of sequences; what a curve learns is cost_curve.py's. The
rows of one sequence share what they read, those of several do not: a draft beside seven others
costs several times what it costs alone, so no single curve over the rows of a step can be right.
"""

from __future__ import annotations

from collections.abc import Mapping

from verifier_service.cost_curve import CostCurve, Floats

__all__ = ["CostTable", "Floats"]


class CostTable:
    """Seconds of a step of `query_tokens` rows, profiled at start and refreshed online.

    One curve for each power of two of sequences; a new one begins as the nearest known one is at
    that moment. Build with `from_profile`, refresh with `observe`. Not thread-safe.
    """

    __slots__ = ("_curves", "_recent")

    def __init__(self, profiled: CostCurve) -> None:
        self._curves = {_octave(1): profiled}
        self._recent = profiled

    @classmethod
    def from_profile(
        cls,
        profile: Mapping[int, float],
        context: int = 0,
        attention: tuple[float, float] = (0.0, 0.0),
    ) -> CostTable:
        """A table from measured medians; see `CostCurve.from_profile`. Raises ValueError."""
        return cls(CostCurve.from_profile(profile, context, attention))

    def add(self, sequences: int, profile: Mapping[int, float], context: int) -> None:
        """Take in what steps of `sequences` cost, by their rows, over `context` tokens in all.

        Raises ValueError as `from_profile` does.
        """
        slopes = self._nearest(sequences).attention
        self._curves[_octave(sequences)] = CostCurve.from_profile(profile, context, slopes)

    def seconds(self, query_tokens: int, sequences: int = 1, context: int = 0) -> float:
        """Expected seconds of a step of `query_tokens` rows of `sequences` over `context` tokens.

        `context` is the sum of the sequences' context lengths.
        """
        return self._nearest(sequences).seconds(query_tokens, sequences, context)

    def curve(self, first: int, count: int, sequences: int = 1, context: int = 0) -> Floats:
        """Expected seconds for `first`, `first` + 1, ... rows: [count], never falling."""
        return self._nearest(sequences).curve(first, count, sequences, context)

    def observe(self, query_tokens: int, sequences: int, context: int, seconds: float) -> None:
        """Take in one measured step; steps that also prefill do not belong here."""
        octave = _octave(sequences)
        if octave not in self._curves:
            self._curves[octave] = self._nearest(sequences).derived()
        self._recent = self._curves[octave]
        self._recent.observe(query_tokens, sequences, context, seconds)

    def age(self, sequences: int) -> int:
        """How many steps ago a plain step of so many was last measured as expected.

        Steps of about so many sequences are counted.
        """
        return self._nearest(sequences).age(sequences)

    def known(self, sequences: int) -> float:
        """Decayed number of plain steps of so many that were measured."""
        return self._nearest(sequences).known(sequences)

    def drift(self, sequences: int) -> float:
        """How far, relatively, their plain step has moved on the evidence of other rows alone."""
        return self._nearest(sequences).drift(sequences)

    def milliseconds(self) -> dict[int, float]:
        """The curve that was measured last, for people: {query tokens: milliseconds}."""
        return self._recent.milliseconds()

    def _nearest(self, sequences: int) -> CostCurve:
        octave = _octave(sequences)
        curve = self._curves.get(octave)
        if curve is None:
            curve = self._curves[min(self._curves, key=lambda known: abs(known - octave))]
        return curve


def _octave(sequences: int) -> int:
    return sequences.bit_length()
