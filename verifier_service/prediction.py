"""Drafts from what a request's client predicted of its answer: where the answer is in that text.

Knows token ids; knows no text, no other proposer and no cost. It reads the answer as it grows, one
step at a time, and drafts what follows in the prediction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from verifier_service.messages import PREDICTION, DraftBlock

# Ids of the answer that are compared with the prediction to find a place in it.
_LONGEST_MATCH = 32
# Occurrences of the answer's last id that are looked at, nearest first, each way from where the
# answer was last.
_OCCURRENCES = 32


class PredictedIds:
    """Follows one answer through `ids`, its prediction. Used by the engine's thread alone.

    The answer begins where the prediction does. Where the two part, the prediction goes on behind
    the place whose last ids are the answer's last ids: the longest such run, of equal ones the
    nearest ahead of where the answer was, then the nearest behind. As long as there is none,
    nothing is drafted. So insertions, deletions, replacements and moved parts are all found again
    with the first id that is the prediction's own.
    """

    __slots__ = ("_at", "_ids", "_last", "_matched", "_places", "_read")

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)
        # Index of the id that is expected next, None while the answer is nowhere in the prediction.
        self._at: int | None = 0
        self._last = 0
        self._matched = 0
        self._read = 0
        # Where each id is followed by another one: indices of the followers, rising.
        self._places: dict[int, list[int]] = {}
        for following, token in enumerate(self._ids[:-1], start=1):
            self._places.setdefault(token, []).append(following)

    def block(self, ids: Sequence[int], prompt_length: int, most: int) -> DraftBlock | None:
        """At most `most` drafts behind `ids`, prompt and answer; None where there are none.

        Called with the same answer, or a longer one, each time.
        """
        self._follow(ids, prompt_length)
        if self._at is None or most <= 0:
            return None
        drafts = self._ids[self._at : self._at + most]
        if not drafts:
            return None
        return DraftBlock(PREDICTION, len(ids), drafts, match_length=self._matched)

    def _follow(self, ids: Sequence[int], prompt_length: int) -> None:
        start, self._read = prompt_length + self._read, len(ids) - prompt_length
        if start == len(ids):
            return
        for position in range(start, len(ids)):
            if self._at is None:
                break
            if self._at < len(self._ids) and self._ids[self._at] == ids[position]:
                self._at += 1
                self._matched += 1
            else:
                self._last, self._at = self._at, None
        if self._at is None:
            self._find(ids, prompt_length)

    def _find(self, ids: Sequence[int], prompt_length: int) -> None:
        places = self._places.get(ids[-1], [])
        middle = bisect_left(places, self._last)
        best = (0, False, 0)
        for place in places[max(middle - _OCCURRENCES, 0) : middle + _OCCURRENCES]:
            length = self._run(place, ids, prompt_length)
            ahead = place >= self._last
            rank = (length, ahead, -abs(place - self._last))
            if rank > best:
                best, self._at, self._matched = rank, place, length

    def _run(self, place: int, ids: Sequence[int], prompt_length: int) -> int:
        """How many of the answer's last ids are those before `place`, at least 1."""
        longest = min(place, len(ids) - prompt_length, _LONGEST_MATCH)
        length = 1
        while length < longest and self._ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        return length
