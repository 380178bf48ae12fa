"""Calls as Hermes, Qwen and many others write them: `<tool_call>{"name", "arguments"}</tool_call>`.

Knows the two tags; the object between them is call_scanner.py's. Format: NousResearch,
"Hermes Function Calling".
"""

from __future__ import annotations

from typing import Final

from gateway.tools.json_scanner import WHITESPACE
from gateway.tools.steps import SteppedParser

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"


class HermesParser(SteppedParser):
    """Calls anywhere in the text. A last call may lack its end tag; a broken one is content."""

    def _in_text(self) -> bool:
        lead = self._text_before(BEGIN)
        return False if lead is None else self._read_call(lead, self._at_end_tag)

    def _at_end_tag(self) -> bool:
        rest = self._buffer.lstrip(WHITESPACE)
        if rest.startswith(END):
            self._take(len(self._buffer) - len(rest) + len(END))
        elif END.startswith(rest) and not self._final:
            return False
        return self._go_on_in_text()
