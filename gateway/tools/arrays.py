"""Calls in a JSON array, `[{"name", "parameters"}, …]`: the form a required call is held to.

Knows the array's punctuation; each object is call_scanner.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gateway.tools.json_scanner import WHITESPACE
from gateway.tools.steps import SteppedParser


class ArrayParser(SteppedParser):
    """An answer that is one array of calls; what is none is content."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._state = self._at_beginning

    def _at_beginning(self) -> bool:
        return self._read_array("", self._go_on_in_text)

    def _read_array(self, lead: str, otherwise: Callable[[], bool]) -> bool:
        """Read `[{` behind `lead`; where something else stands, `otherwise` tells it."""
        opening = self._buffer.lstrip(WHITESPACE)
        inside = opening.removeprefix("[").lstrip(WHITESPACE)
        if opening.startswith("[") and inside.startswith("{"):
            skipped = self._take(len(self._buffer) - len(inside))
            return self._read_call(lead + skipped, self._between)
        if not inside and not self._final:
            return False
        return otherwise()

    def _between(self) -> bool:
        """Behind an element: `,` and the next one, or the array's end."""
        rest = self._buffer.lstrip(WHITESPACE)
        following = rest.removeprefix(",").lstrip(WHITESPACE)
        if rest.startswith(",") and following.startswith("{"):
            return self._read_call(self._take(len(self._buffer) - len(following)), self._between)
        if rest.startswith("]"):
            self._take(len(self._buffer) - len(rest) + 1)
        elif not following and not self._final:
            return False
        return self._go_on_in_text()
