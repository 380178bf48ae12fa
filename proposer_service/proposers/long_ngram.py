"""Prompt lookup with windows of any length: work and memory follow the text, not the windows.

The drafts are those of `ngram`. That one remembers every n-gram of every window, which is quickest
while windows are short and grows with the square of `prompt_lookup_max`; here a suffix automaton
(Blumer et al., 1985) knows the first end of every string. It prepares nothing ahead: what long
windows match is rare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proposer_service.proposers.base import NO_DRAFT, Complete, Draft, Outcome, Proposer
from proposer_service.proposers.ngram import NgramProposer, check_windows

# The longest window whose n-grams are indexed one by one.
MOST_INDEXED = 32

_ROOT = 0


def ngram_proposer(prompt_lookup_min: int, prompt_lookup_max: int) -> Proposer:
    """vLLM's `ngram`, by the way that suits its windows. Raises ValueError for wrong bounds."""
    if prompt_lookup_max > MOST_INDEXED:
        return LongNgramProposer(prompt_lookup_min, prompt_lookup_max)
    return NgramProposer(prompt_lookup_min, prompt_lookup_max)


class _Substrings:
    """One growing text and where each of its substrings ended first.

    A state stands for the substrings that end at the same places; `_longest` is the length of its
    longest member, `_link` the state of the longest suffix that ends elsewhere too, `_first_end`
    the length of the text when its members were there first. `_tail` is the state of the last
    min(`max_length`, length) ids.
    """

    __slots__ = (
        "_first_end",
        "_last",
        "_link",
        "_longest",
        "_successors",
        "_tail",
        "ids",
        "max_length",
    )

    def __init__(self, max_length: int) -> None:
        self.ids: list[int] = []
        self.max_length = max_length
        self._longest = [0]
        self._link = [-1]
        self._successors: list[dict[int, int]] = [{}]
        self._first_end = [0]
        self._last = _ROOT
        self._tail = _ROOT

    def extend(self, ids: Sequence[int]) -> None:
        for token in ids:
            self._append(token)

    def longest_match(self) -> tuple[int, int]:
        """Length of the longest tail that ended earlier too, and where it ended first; (0, 0)."""
        length = len(self.ids)
        if self._first_end[self._tail] < length:
            return min(self.max_length, length), self._first_end[self._tail]
        state = self._link[self._tail]
        return (self._longest[state], self._first_end[state]) if state > _ROOT else (0, 0)

    def _append(self, token: int) -> None:
        longest = self._longest
        link = self._link
        successors = self._successors
        self.ids.append(token)
        new = self._add(longest[self._last] + 1, _ROOT, {}, len(self.ids))
        state = self._last
        while state >= 0 and token not in successors[state]:
            successors[state][token] = new
            state = link[state]
        if state >= 0:
            target = successors[state][token]
            if longest[target] != longest[state] + 1:
                target = self._split(target, state, token)
            link[new] = target
        self._last = new
        tail = successors[self._tail][token]
        while longest[link[tail]] >= self.max_length:
            tail = link[tail]
        self._tail = tail

    def _split(self, target: int, state: int, token: int) -> int:
        """Give the members of `target` that end more often than its longest a state of theirs."""
        copy = self._add(
            self._longest[state] + 1,
            self._link[target],
            dict(self._successors[target]),
            self._first_end[target],
        )
        self._link[target] = copy
        while state >= 0 and self._successors[state].get(token) == target:
            self._successors[state][token] = copy
            state = self._link[state]
        return copy

    def _add(self, longest: int, link: int, successors: dict[int, int], first_end: int) -> int:
        self._longest.append(longest)
        self._link.append(link)
        self._successors.append(successors)
        self._first_end.append(first_end)
        return len(self._longest) - 1


class LongNgramProposer(Proposer):
    """`ngram` with windows of `prompt_lookup_min` to `prompt_lookup_max` tokens, however many."""

    def __init__(self, prompt_lookup_min: int, prompt_lookup_max: int) -> None:
        check_windows(prompt_lookup_min, prompt_lookup_max)
        self._least = prompt_lookup_min
        self._most = prompt_lookup_max
        self._texts: dict[int, _Substrings] = {}

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        """Texts share nothing, so `prompt_length` and `salt` have no effect."""
        text = self._texts[sequence_id] = _Substrings(self._most)
        text.extend(ids)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self._texts[sequence_id].extend(ids)

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        text = self._texts[sequence_id]
        length, start = text.longest_match()
        if length < self._least:
            return NO_DRAFT
        return Draft(tuple(text.ids[start : start + max_draft_tokens]), length)

    def lookahead(
        self, sequence_id: int, draft: Draft, max_draft_tokens: int
    ) -> Iterable[Outcome | Complete]:
        return ()

    def close(self, sequence_id: int, finished: bool) -> None:
        del self._texts[sequence_id]
