"""Calls as Llama 3 writes them: an answer that is `{"name", "parameters"}`, or several with `;`.

Knows the tag that may stand before them (`<|python_tag|>`); the object is call_scanner.py's.
Format: Meta, "Llama 3.1 prompt formats", JSON based tool calling.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gateway.tools.json_scanner import WHITESPACE
from gateway.tools.steps import SteppedParser

TAG: Final = "<|python_tag|>"
SEPARATOR: Final = ";"


class Llama3JsonParser(SteppedParser):
    """Calls at the answer's beginning, behind a tag, and behind another call's `;`."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._state = self._at_beginning

    def _at_beginning(self) -> bool:
        rest = self._buffer.lstrip(WHITESPACE)
        if not rest and not self._final:
            return False
        if rest.startswith("{"):
            return self._read_call(self._take(len(self._buffer) - len(rest)), self._behind)
        return self._go_on_in_text()

    def _in_text(self) -> bool:
        lead = self._text_before(TAG)
        return False if lead is None else self._read_call(lead, self._behind)

    def _behind(self) -> bool:
        """Behind a call: `;` and an object make the next one."""
        rest = self._buffer.lstrip(WHITESPACE)
        opening = rest.removeprefix(SEPARATOR).lstrip(WHITESPACE)
        if rest.startswith(SEPARATOR) and opening.startswith("{"):
            return self._read_call(self._take(len(self._buffer) - len(opening)), self._behind)
        if not opening and not self._final:
            return False
        return self._go_on_in_text()
