"""Reads one call as it arrives: `{"name": …, "arguments": {…}}`, or arguments alone.

Knows the object's keys, in either order; does not know what stands around it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto
from typing import Final, Protocol

from gateway.tools.events import (
    Arguments,
    CallBegan,
    CallBroken,
    CallEnded,
    Content,
    ToolEvent,
)
from gateway.tools.json_scanner import WHITESPACE, JsonScanner

_NAME_KEY: Final = "name"
# Hermes and Mistral write the first, Llama the second; one of them, once.
_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})


class Reading(Protocol):
    """A call that is being read; done or failed, nothing more is read."""

    @property
    def done(self) -> bool: ...

    @property
    def failed(self) -> bool: ...

    def read(self, text: str) -> tuple[list[ToolEvent], int]:
        """Events of the characters that belong to the call, and how many these are."""

    def give_up(self) -> tuple[list[ToolEvent], str]:
        """The last events of a call that failed or whose text ended, and what is no part of it."""


class ArgumentsReading:
    """The arguments of `name`, one JSON object; `lead` is the call's text before them."""

    def __init__(self, name: str, lead: str) -> None:
        self._name = name
        self._raw = [lead]
        self._scanner = JsonScanner()
        self._begun = False
        self._refused = False

    @property
    def done(self) -> bool:
        return self._scanner.done

    @property
    def failed(self) -> bool:
        return self._refused or self._scanner.failed

    def read(self, text: str) -> tuple[list[ToolEvent], int]:
        start = 0
        if not self._begun:
            start = len(text) - len(text.lstrip(WHITESPACE))
            self._raw.append(text[:start])
            if start == len(text):
                return [], start
            if text[start] != "{":
                self._refused = True
                return [], start
        events: list[ToolEvent] = [] if self._begun else [CallBegan(self._name)]
        self._begun = True
        end = self._scanner.read(text, start)
        self._raw.append(text[start:end])
        if end > start:
            events.append(Arguments(text[start:end]))
        if self.done:
            events.append(CallEnded())
        return events, end

    def give_up(self) -> tuple[list[ToolEvent], str]:
        raw = "".join(self._raw)
        return [CallBroken(raw) if self._begun else Content(raw)], ""


class _Expect(Enum):
    OPENING = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA_OR_END = auto()
    DONE = auto()
    FAILED = auto()


class CallReading:
    """A call object. `names` are the functions offered: no other name makes a call.

    `lead` is the text that belongs to the call before its object. The call begins once its name
    is known and its arguments open; with its arguments complete it stands, whatever follows. An
    object with a name and without arguments calls with none.
    """

    def __init__(self, names: Collection[str], lead: str) -> None:
        self._names = names
        self._expect = _Expect.OPENING
        self._raw = [lead]
        self._scanner = JsonScanner()
        self._piece: list[str] = []
        self._key = ""
        self._name: str | None = None
        # Complete arguments that came before the name, or that were told already.
        self._arguments: str | None = None
        self._arguments_seen = False
        self._begun = False
        self._stands = False
        self._tail: list[str] = []

    @property
    def done(self) -> bool:
        return self._expect is _Expect.DONE

    @property
    def failed(self) -> bool:
        return self._expect is _Expect.FAILED

    def read(self, text: str) -> tuple[list[ToolEvent], int]:
        events: list[ToolEvent] = []
        index = 0
        while index < len(text) and not self.done and not self.failed:
            stood = self._stands
            end = self._read_part(text, index, events)
            self._raw.append(text[index:end])
            if stood:
                self._tail.append(text[index:end])
            index = end
        return events, index

    def give_up(self) -> tuple[list[ToolEvent], str]:
        if self._stands:
            return [CallEnded()], "".join(self._tail)
        raw = "".join(self._raw)
        return [CallBroken(raw) if self._begun else Content(raw)], ""

    def _read_part(self, text: str, index: int, events: list[ToolEvent]) -> int:
        """Read one character of punctuation, or as much of a key or value as there is."""
        if self._expect is _Expect.VALUE and self._piece:
            return self._read_value(text, index, events)
        if self._expect in (_Expect.KEY, _Expect.KEY_OR_END) and self._piece:
            return self._read_key(text, index)
        char = text[index]
        if char in WHITESPACE:
            return index + 1
        if self._expect is _Expect.VALUE:
            if self._key in _ARGUMENT_KEYS and char != "{":
                return self._fail(index)
            return self._read_value(text, index, events)
        if self._expect in (_Expect.KEY, _Expect.KEY_OR_END) and char == '"':
            return self._read_key(text, index)
        if self._expect in (_Expect.KEY_OR_END, _Expect.COMMA_OR_END) and char == "}":
            return self._close(index, events)
        step = {
            (_Expect.OPENING, "{"): _Expect.KEY_OR_END,
            (_Expect.COLON, ":"): _Expect.VALUE,
            (_Expect.COMMA_OR_END, ","): _Expect.KEY,
        }.get((self._expect, char))
        if step is None:
            return self._fail(index)
        self._expect = step
        return index + 1

    def _read_key(self, text: str, index: int) -> int:
        end = self._scan(text, index)
        if self._scanner.done:
            self._key = json.loads(self._take_piece())
            self._expect = _Expect.COLON
            again = self._key == _NAME_KEY and self._name is not None
            if again or (self._key in _ARGUMENT_KEYS and self._arguments_seen):
                self._expect = _Expect.FAILED
            self._arguments_seen |= self._key in _ARGUMENT_KEYS
        return end

    def _read_value(self, text: str, index: int, events: list[ToolEvent]) -> int:
        streams = self._key in _ARGUMENT_KEYS and self._name is not None
        if streams:
            self._begin(events)
        end = self._scan(text, index)
        if streams and end > index:
            events.append(Arguments(text[index:end]))
        if self._scanner.done:
            self._end_value(events)
        return end

    def _end_value(self, events: list[ToolEvent]) -> None:
        self._expect = _Expect.COMMA_OR_END
        piece = self._take_piece()
        if self._key in _ARGUMENT_KEYS:
            self._arguments = piece
        elif self._key == _NAME_KEY:
            name = json.loads(piece) if piece.startswith('"') else None
            if name is None or name not in self._names:
                self._expect = _Expect.FAILED
                return
            self._name = name
            if self._arguments is not None:
                self._begin(events)
                events.append(Arguments(self._arguments))
        self._stands = self._name is not None and self._arguments is not None

    def _close(self, index: int, events: list[ToolEvent]) -> int:
        if self._name is None:
            return self._fail(index)
        if not self._stands:
            self._begin(events)
            events.append(Arguments("{}"))
        events.append(CallEnded())
        self._expect = _Expect.DONE
        return index + 1

    def _begin(self, events: list[ToolEvent]) -> None:
        if not self._begun:
            self._begun = True
            events.append(CallBegan(self._name or ""))

    def _scan(self, text: str, index: int) -> int:
        end = self._scanner.read(text, index)
        self._piece.append(text[index:end])
        if self._scanner.failed:
            self._expect = _Expect.FAILED
        return end

    def _take_piece(self) -> str:
        """The key or value that was read; the next one is read anew."""
        piece = "".join(self._piece)
        self._piece = []
        self._scanner = JsonScanner()
        return piece

    def _fail(self, index: int) -> int:
        self._expect = _Expect.FAILED
        return index
