"""Finds stop strings in text that arrives in pieces.

Knows characters only. How the text is cut into pieces never changes the answer: the match that
completes first wins, and of several that complete at the same character the longest. Built on
the automaton of Aho and Corasick (Communications of the ACM 18(6), 1975): its depth is the
length of the longest suffix that could still become a stop string, which is what must be held
back; the cost is O(1) amortised a character, however many stop strings there are.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Text that may be shown now; `stop` is the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """The stop strings of one request, and how much of them its text's end may hold.

    `include` keeps the matched string in the text.
    """

    __slots__ = ("_depth", "_fail", "_first", "_held", "_include", "_next", "_state", "_stop_at")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not stops or not all(stops):
            raise ValueError(f"stop strings must not be empty, got {list(stops)!r}")
        self._include = include
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fail = [0]
        # The longest stop string that ends in each state.
        self._stop_at: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()
        starts = "".join(re.escape(c) for c in sorted({s[0] for s in stops}))
        self._first = re.compile(f"[{starts}]")
        self._state = 0
        self._held = ""

    def push(self, text: str) -> StopMatch:
        """Takes further text; after a match nothing more may be pushed."""
        buffer = self._held + text
        position = len(self._held)
        state = self._state
        while position < len(buffer):
            if state == 0:
                start = self._first.search(buffer, position)
                if start is None:
                    position = len(buffer)
                    break
                position = start.start()
            character = buffer[position]
            while state and character not in self._next[state]:
                state = self._fail[state]
            state = self._next[state].get(character, 0)
            position += 1
            stop = self._stop_at[state]
            if stop is not None:
                self._state, self._held = 0, ""
                end = position if self._include else position - len(stop)
                return StopMatch(buffer[:end], stop)
        self._state = state
        cut = len(buffer) - self._depth[state]
        self._held = buffer[cut:]
        return StopMatch(buffer[:cut])

    def finish(self) -> str:
        """The held-back text, once no more will come."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._fail.append(0)
                self._stop_at.append(None)
            state = self._next[state][character]
        self._stop_at[state] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            if self._stop_at[state] is None:
                self._stop_at[state] = self._stop_at[self._fail[state]]
            for character, child in self._next[state].items():
                fallback = self._fail[state]
                while fallback and character not in self._next[fallback]:
                    fallback = self._fail[fallback]
                self._fail[child] = self._next[fallback].get(character, 0)
                queue.append(child)
