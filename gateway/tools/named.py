"""The answer to a named `tool_choice`: its whole text is that function's arguments.

Knows the name alone: the verifier held the text to the function's schema.
"""

from __future__ import annotations

from gateway.tools.events import Arguments, CallBegan, CallEnded, ToolEvent


class NamedParser:
    """One call of `name`, told before its first argument."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str) -> list[ToolEvent]:
        return [*self._begin(), Arguments(text)] if text else []

    def finish(self) -> list[ToolEvent]:
        return [*self._begin(), CallEnded()]

    def _begin(self) -> list[ToolEvent]:
        if self._begun:
            return []
        self._begun = True
        return [CallBegan(self._name)]
