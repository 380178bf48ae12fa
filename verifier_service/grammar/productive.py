"""Whether a grammar's start symbol derives anything finite. Knows grammars as xgrammar prints them.

A printed rule is `name ::= (a b | "c" [d]* | name{2,3}) (=(lookahead))`. What is not understood
counts as productive: this finds hopeless grammars, it does not check hopeful ones.
"""

from __future__ import annotations

import re

_RULE = re.compile(r"^([A-Za-z_][\w.-]*) ::= ", re.MULTILINE)
_TOKEN = re.compile(
    r"""\s*(?: "(?:\\.|[^"\\])*" | \[(?:\\.|[^\]\\])*\] | (?P<name>[A-Za-z_][\w.-]*)
    | (?P<times>\{\s*(?P<least>\d+)[^}]*\}) | (?P<mark>\(=|[()|*+?]) )""",
    re.VERBOSE,
)
_START = "root"


def unproductive_start(printed: str) -> bool:
    """Whether nothing finite matches the rule `root` of a printed grammar."""
    heads = list(_RULE.finditer(printed))
    ends = [*(head.start() for head in heads), len(printed)][1:]
    bodies = {
        head.group(1): _alternatives(printed[head.end() : end].strip())
        for head, end in zip(heads, ends, strict=True)
    }
    waiting = {name: body for name, body in bodies.items() if body is not None}
    productive = set(bodies) - set(waiting)
    grown = True
    while grown:
        done = {n for n, body in waiting.items() if any(needs <= productive for needs in body)}
        productive |= done
        grown = bool(done)
        for name in done:
            del waiting[name]
    return _START in waiting


def _alternatives(body: str) -> list[frozenset[str]] | None:
    """The rules that each way to match a body needs; None where the body is not understood."""
    reader = _Reader(body)
    found = reader.choice()
    return found if reader.understood and reader.at_end else None


class _Reader:
    """Reads one body. A choice within a sequence is approximated by its first finite needs.

    xgrammar prints normalised grammars, whose choices stand at the top; where one does not, the
    needs of a group are not split into ways, and the body counts as not understood.
    """

    def __init__(self, text: str) -> None:
        self.understood = True
        self._text = text
        self._at = 0
        self._depth = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._text)

    def choice(self) -> list[frozenset[str]]:
        ways = self._sequence()
        while self._take("|"):
            ways = ways + self._sequence()
        return ways

    def _sequence(self) -> list[frozenset[str]]:
        needs: list[frozenset[str]] = [frozenset()]
        while self.understood and (token := self._next()) is not None:
            mark = token.group("mark")
            if mark in ("|", ")"):
                break
            self._at = token.end()
            if mark == "(=":
                self._skip_group()
                continue
            if mark == "(":
                part = self._group()
            elif mark is None and token.group("times") is None:
                name = token.group("name")
                part = [frozenset((name,) if name else ())]
            else:
                self.understood = False
                break
            if self._optional():
                continue
            if len(part) > 1 and needs != [frozenset()]:
                self.understood = False
            needs = part if needs == [frozenset()] else [have | part[0] for have in needs]
        return needs

    def _group(self) -> list[frozenset[str]]:
        self._depth += 1
        if self._depth > 50:
            self.understood = False
            return [frozenset()]
        ways = self.choice()
        self._depth -= 1
        if not self._take(")"):
            self.understood = False
        return ways

    def _skip_group(self) -> None:
        depth = 1
        while depth and (token := self._next()) is not None:
            self._at = token.end()
            depth += {"(": 1, "(=": 1, ")": -1}.get(token.group("mark") or "", 0)

    def _optional(self) -> bool:
        """Whether what was just read may be left out, by what stands behind it."""
        token = self._next()
        if token is None:
            return False
        if token.group("mark") in ("*", "?"):
            self._at = token.end()
            return True
        if token.group("mark") == "+":
            self._at = token.end()
        if token.group("times"):
            self._at = token.end()
            return token.group("least") == "0"
        return False

    def _take(self, mark: str) -> bool:
        token = self._next()
        if token is None or token.group("mark") != mark:
            return False
        self._at = token.end()
        return True

    def _next(self) -> re.Match[str] | None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        token = _TOKEN.match(self._text, self._at)
        if token is None and self._at < len(self._text):
            self.understood = False
        return token
