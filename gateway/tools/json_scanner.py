"""Reads one JSON value as it arrives, and says at each character whether it still can be one.

Knows RFC 8259's grammar (NaN and Infinity are none of it); keeps no values, and needs no recursion
however deep they nest.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

WHITESPACE: Final = " \t\n\r"

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPES: Final = frozenset('"\\/bfnrt')
_LITERALS: Final = {"t": "rue", "f": "alse", "n": "ull"}


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    LITERAL = auto()
    NUMBER = auto()
    DONE = auto()
    FAILED = auto()


class _Number(Enum):
    MINUS = auto()
    ZERO = auto()
    INTEGER = auto()
    POINT = auto()
    FRACTION = auto()
    E = auto()
    SIGN = auto()
    EXPONENT = auto()


_NUMBER_END: Final = frozenset({_Number.ZERO, _Number.INTEGER, _Number.FRACTION, _Number.EXPONENT})
# State -> what a character of each class leads to: "0", other digits "1", ".", "e", sign "+".
_NUMBER_STEPS: Final[dict[_Number, dict[str, _Number]]] = {
    _Number.MINUS: {"0": _Number.ZERO, "1": _Number.INTEGER},
    _Number.ZERO: {".": _Number.POINT, "e": _Number.E},
    _Number.INTEGER: {
        "0": _Number.INTEGER,
        "1": _Number.INTEGER,
        ".": _Number.POINT,
        "e": _Number.E,
    },
    _Number.POINT: {"0": _Number.FRACTION, "1": _Number.FRACTION},
    _Number.FRACTION: {"0": _Number.FRACTION, "1": _Number.FRACTION, "e": _Number.E},
    _Number.E: {"0": _Number.EXPONENT, "1": _Number.EXPONENT, "+": _Number.SIGN},
    _Number.SIGN: {"0": _Number.EXPONENT, "1": _Number.EXPONENT},
    _Number.EXPONENT: {"0": _Number.EXPONENT, "1": _Number.EXPONENT},
}
_NUMBER_CLASSES: Final = {
    **dict.fromkeys("123456789", "1"),
    **dict.fromkeys("eE", "e"),
    **dict.fromkeys("+-", "+"),
    "0": "0",
    ".": ".",
}


class JsonScanner:
    """One value. A number ends with the character behind it, or with `finish`."""

    def __init__(self) -> None:
        self._expect = _Expect.VALUE
        self._open: list[str] = []
        self._key = False
        self._left = 0
        self._literal = ""
        self._number = _Number.MINUS

    @property
    def done(self) -> bool:
        """Whether the value is complete; nothing more is read."""
        return self._expect is _Expect.DONE

    @property
    def failed(self) -> bool:
        """Whether what was read cannot become JSON any more; nothing more is read."""
        return self._expect is _Expect.FAILED

    def read(self, text: str, start: int = 0) -> int:
        """Read on from `start`; the index behind the last character that belongs to the value.

        Whitespace before the value belongs to it. What makes it fail does not.
        """
        index = start
        while index < len(text):
            if self._expect is _Expect.STRING:
                plain = _PLAIN.match(text, index)
                index = plain.end() if plain else index
                if index == len(text):
                    break
            if not self._take(text[index]):
                break
            index += 1
            if self._expect is _Expect.DONE:
                break
        return index

    def finish(self) -> None:
        """No more text comes: an open value fails, unless it is a complete number."""
        if self._expect is _Expect.NUMBER and not self._open and self._number in _NUMBER_END:
            self._expect = _Expect.DONE
        elif not self.done:
            self._expect = _Expect.FAILED

    def _take(self, char: str) -> bool:
        """Whether `char` belongs to the value."""
        if self._expect is _Expect.NUMBER:
            step = _NUMBER_STEPS[self._number].get(_NUMBER_CLASSES.get(char, ""))
            if step is not None:
                self._number = step
                return True
            if self._number not in _NUMBER_END:
                return self._fail()
            self._end_value()
        if self._expect in (_Expect.DONE, _Expect.FAILED):
            return False
        if self._expect in _IN_TOKEN:
            return self._take_in_token(char)
        return char in WHITESPACE or self._take_between(char)

    def _take_in_token(self, char: str) -> bool:
        """A character of a string or literal that has begun."""
        if self._expect is _Expect.STRING:
            if char == '"':
                self._end_string()
            elif char == "\\":
                self._expect = _Expect.ESCAPE
            else:
                return self._fail()
        elif self._expect is _Expect.ESCAPE:
            if char != "u" and char not in _ESCAPES:
                return self._fail()
            self._expect = _Expect.HEX if char == "u" else _Expect.STRING
            self._left = 4
        elif self._expect is _Expect.HEX:
            if char not in _HEX:
                return self._fail()
            self._left -= 1
            if not self._left:
                self._expect = _Expect.STRING
        else:
            if char != self._literal[0]:
                return self._fail()
            self._literal = self._literal[1:]
            if not self._literal:
                self._end_value()
        return True

    def _take_between(self, char: str) -> bool:
        """A character where a value, a key or punctuation is due."""
        expect = self._expect
        if expect is _Expect.COLON and char == ":":
            self._expect = _Expect.VALUE
        elif expect is _Expect.COMMA_OR_END and char == ",":
            self._expect = _Expect.KEY if self._open[-1] == "}" else _Expect.VALUE
        elif expect in _MAY_END and char == self._open[-1]:
            self._open.pop()
            self._end_value()
        elif expect in (_Expect.KEY, _Expect.KEY_OR_END) and char == '"':
            self._key = True
            self._expect = _Expect.STRING
        elif expect in (_Expect.VALUE, _Expect.VALUE_OR_END):
            return self._begin_value(char)
        else:
            return self._fail()
        return True

    def _begin_value(self, char: str) -> bool:
        if char == "{":
            self._open.append("}")
            self._expect = _Expect.KEY_OR_END
        elif char == "[":
            self._open.append("]")
            self._expect = _Expect.VALUE_OR_END
        elif char == '"':
            self._key = False
            self._expect = _Expect.STRING
        elif char in _LITERALS:
            self._literal = _LITERALS[char]
            self._expect = _Expect.LITERAL
        elif char == "-" or char in _NUMBER_STEPS[_Number.MINUS] or char in "123456789":
            self._expect = _Expect.NUMBER
            self._number = (
                _Number.MINUS
                if char == "-"
                else _NUMBER_STEPS[_Number.MINUS][_NUMBER_CLASSES[char]]
            )
        else:
            return self._fail()
        return True

    def _end_string(self) -> None:
        if self._key:
            self._expect = _Expect.COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        self._expect = _Expect.COMMA_OR_END if self._open else _Expect.DONE

    def _fail(self) -> bool:
        self._expect = _Expect.FAILED
        return False


_IN_TOKEN: Final = frozenset({_Expect.STRING, _Expect.ESCAPE, _Expect.HEX, _Expect.LITERAL})
_MAY_END: Final = frozenset({_Expect.VALUE_OR_END, _Expect.KEY_OR_END, _Expect.COMMA_OR_END})
