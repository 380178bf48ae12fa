"""Calls as Mistral's models write them, behind `[TOOL_CALLS]`.

Knows the array of the older tokenizers, `[TOOL_CALLS][{"name", "arguments"}, …]`, and the newer
`[TOOL_CALLS]name[ARGS]{…}`, with or without `[ARGS]`. Format: mistral-common, tokenizers v3 to v13.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from gateway.tools.arrays import ArrayParser
from gateway.tools.call_scanner import ArgumentsReading
from gateway.tools.json_scanner import WHITESPACE

MARKER: Final = "[TOOL_CALLS]"

_HEAD: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
# Longer than any name of a function with an id and tags.
_LONGEST_HEAD: Final = 256


class MistralParser(ArrayParser):
    """Calls behind each marker; a marker that none follows is content."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._state = self._in_text
        self._lead = ""

    def _in_text(self) -> bool:
        lead = self._text_before(MARKER)
        if lead is None:
            return False
        self._lead = lead
        self._state = self._behind_marker
        return True

    def _behind_marker(self) -> bool:
        if self._buffer.lstrip(WHITESPACE).startswith("["):
            return self._read_array(self._lead, self._no_call)
        window = self._buffer[: _LONGEST_HEAD + 1]
        head = _HEAD.match(window)
        if head is not None:
            lead = self._lead + self._take(head.end())
            if head[1] in self._names:
                reading = ArgumentsReading(head[1], lead)
                return self._read_call(lead, self._go_on_in_text, reading)
            self._lead = lead
            return self._no_call()
        if "{" in window or len(window) > _LONGEST_HEAD or self._final:
            return self._no_call()
        return False

    def _no_call(self) -> bool:
        self._tell(self._lead)
        return self._go_on_in_text()
