"""What the parsers share: a buffer that states read from, and text in which calls are marked.

Knows when text may be told and when it must wait; knows no model's notation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from gateway.tools.call_scanner import CallReading, Reading
from gateway.tools.events import CallEnded, Content, ToolEvent
from gateway.tools.json_scanner import WHITESPACE


class SteppedParser:
    """Runs states over the buffered text until they need more of it.

    A state takes what it can from `_buffer`, appends to `_events` and answers whether the next
    state can go on at once. Once `_final` is set, no more text comes: states must not wait.
    Whitespace beside a call belongs to neither content nor call and is not told; elsewhere all
    text is.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names: Final = frozenset(names)
        self._state: Callable[[], bool] = self._in_text
        self._buffer = ""
        self._events: list[ToolEvent] = []
        self._final = False
        self._behind_call = False
        self._reading: Reading | None = None
        self._next: Callable[[], bool] = self._in_text

    def push(self, text: str) -> list[ToolEvent]:
        self._buffer += text
        return self._run()

    def finish(self) -> list[ToolEvent]:
        self._final = True
        return self._run()

    def _run(self) -> list[ToolEvent]:
        while self._state():
            pass
        events, self._events = self._events, []
        return events

    def _in_text(self) -> bool:
        """All that is left is content; notations with a marker look for it first."""
        if self._behind_call and not self._buffer.strip(WHITESPACE):
            self._buffer = "" if self._final else self._buffer
        else:
            self._tell(self._take(len(self._buffer)))
        return False

    def _in_call(self) -> bool:
        """Inside a call; `_next` reads on behind it."""
        assert self._reading is not None
        events, taken = self._reading.read(self._buffer)
        self._events += events
        self._take(taken)
        if not self._reading.done:
            if not self._reading.failed and not self._final:
                return False
            events, rest = self._reading.give_up()
            self._events += events
            self._buffer = rest + self._buffer
            if not isinstance(events[-1], CallEnded):
                self._behind_call = False
                return self._go_on_in_text()
        self._behind_call = True
        self._state = self._next
        return True

    def _read_call(
        self, lead: str, then: Callable[[], bool], reading: Reading | None = None
    ) -> bool:
        """Go into a call whose text began with `lead`; behind it, go on with `then`."""
        self._reading = reading or CallReading(self._names, lead)
        self._next = then
        self._state = self._in_call
        return True

    def _go_on_in_text(self) -> bool:
        self._state = self._in_text
        return True

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _tell(self, text: str) -> None:
        if text:
            self._events.append(Content(text))
            self._behind_call = False

    def _text_before(self, marker: str) -> str | None:
        """Tell the text in front of `marker`; the whitespace before it and it itself, once it came.

        None: it has not come; what may become of it stays in the buffer.
        """
        at = self._buffer.find(marker)
        if at >= 0:
            content = self._buffer[:at].rstrip(WHITESPACE)
            self._tell(self._take(len(content)))
            return self._take(at - len(content) + len(marker))
        if not self._final:
            self._tell(self._take(len(self._buffer) - held_back(self._buffer, marker)))
        elif self._behind_call and not self._buffer.strip(WHITESPACE):
            self._buffer = ""
        else:
            self._tell(self._take(len(self._buffer)))
        return None


def held_back(text: str, marker: str) -> int:
    """How many of the last characters of `text` may be whitespace and the beginning of `marker`."""
    begun = next(
        (n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0
    )
    before = text[: len(text) - begun]
    return begun + len(before) - len(before.rstrip(WHITESPACE))
