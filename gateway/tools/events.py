"""What a parser finds in an answer's text, in the text's order.

Knows neither a model's notation nor OpenAI's objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A call of the function `name`; what follows until CallEnded or CallBroken is its own."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the running call's arguments: a fragment of JSON text, as the model wrote it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The running call is complete: its arguments are one JSON object."""


@dataclass(frozen=True, slots=True)
class CallBroken:
    """The running call is no JSON, or its end never came; `raw` is all of its text.

    Who has told nothing of the call yet shows `raw` as content.
    """

    raw: str


ToolEvent = Content | CallBegan | Arguments | CallEnded | CallBroken


class ToolCallParser(Protocol):
    """Reads one answer. However the text is cut into pushes, the events say the same."""

    def push(self, text: str) -> list[ToolEvent]:
        """What more text settles. Text that may yet begin a call is held back."""

    def finish(self) -> list[ToolEvent]:
        """What was held back; called once, when the text is complete."""
