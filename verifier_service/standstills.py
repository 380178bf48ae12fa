"""When the device may stand still: what `pauses.py` and `looks.py` weigh, as the loop asks for it.

Knows the step that runs and what a plain one costs; knows no drafts, and decides nothing else.
"""

from __future__ import annotations

import math

from verifier_service.costs import CostTable
from verifier_service.looks import Looks
from verifier_service.pauses import Pauses


class Standstills:
    """The part of a controller that weighs pauses. Not thread-safe."""

    def __init__(self, costs: CostTable, *, adaptive: bool) -> None:
        self.costs = costs
        self._adaptive = adaptive
        self._pauses = Pauses()
        self._looks = Looks()
        # Sequences that decode in the step that is weighed: this one, then the one behind it.
        self._decoding = 1
        # Whether nobody is waited for in this step, and whether it decodes plainly to be compared.
        self._passing = self._plain = False

    def weigh_behind(self, sequences: int) -> None:
        """From now on pauses are of the step behind this one, in which so many decode: those whose
        prompts are read to their ends, too."""
        self._decoding = sequences

    def waits_for(self, unknown: int, *, standing: bool = True, prepared: bool = True) -> bool:
        """Whether to wait for the answers of so many sequences that look-ahead has not told.

        `standing`: the device stands still anyway; a step could not be begun instead. `prepared`:
        proposers look ahead.
        """
        if unknown <= 0 or not self._adaptive:
            return unknown > 0
        if self._passing or (self._plain and not prepared):
            return False
        rows = max(self._decoding, 1)
        plain = self.costs.seconds(rows, rows)
        return self._pauses.pays(unknown, rows, plain, standing=standing, prepared=prepared)

    def holds_for(self, known: int) -> bool:
        """Whether to plan the next step with the drafts of so many sequences, not to begin it now.

        A plain step can be begun before anything else is done; one with drafts only behind it.
        """
        if known <= 0 or not self._adaptive:
            return known > 0
        if self._plain:
            return False
        rows = max(self._decoding, 1)
        return self._pauses.holds(known, rows, self.costs.seconds(rows, rows))

    def begins_blindly(self, unused: int) -> bool:
        """Whether the step behind this plain one may be begun before this one's outcome is read.

        `unused`: so many sequences have drafts that this step does not verify.
        """
        return self._adaptive and self._looks.begins_blindly(unused, max(self._decoding, 1))

    def standing(self) -> dict[str, float]:
        """Of about as many sequences as decode: see `Explanation`."""
        rows = max(self._decoding, 1)
        held, tokens = self._pauses.told(rows)
        return {
            "hold_ms": round(held * 1e3, 3),
            "look_ms": round(self._looks.cost(rows) * 1e3, 3),
            "block_tokens": round(tokens, 3),
        }

    def look_cost(self, sequences: int) -> float:
        """Seconds that a look takes from a step of so many; 0 where that is not known."""
        return self._looks.cost(sequences)

    def observe_look(self, unused: int, found: int, *, holds: bool) -> None:
        """Take in that behind this step `found` sequences have drafts, or may have.

        `holds`: they are worth a pause; `unused` as for `begins_blindly`.
        """
        rows = max(self._decoding, 1)
        worth = 0.0
        if holds:
            # Drafts that were not used before will not be without a look; others are a token late.
            most = math.inf if unused else 1.0
            plain = self.costs.seconds(rows, rows)
            # The pause that is held has the look in it.
            worth = self._pauses.gained(found, rows, plain, most) + self._looks.cost(rows)
        self._looks.found(unused, rows, worth)

    def observe_begun(self, looked: float | None) -> None:
        """Take in that the step behind this one was begun, the device having stood still for a look
        of so many seconds; None: nobody looked."""
        if looked is not None:
            self._looks.took(max(self._decoding, 1), looked)

    def observe_held(self, known: int, sequences: int, seconds: float) -> None:
        """Take in how long the device stood still before a step that could have been begun ahead.

        `known` of the `sequences` had drafts. Its rounds have been told.
        """
        self._pauses.held(known, sequences, seconds)

    def observe_waited(self, unknown: int, seconds: float) -> None:
        """Take in that this step waited `seconds` for the answers of `unknown` sequences."""
        if unknown > 0:
            self._pauses.waited(unknown, max(self._decoding, 1), seconds)
