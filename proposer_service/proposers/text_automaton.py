"""How often each short string occurs in one growing text: a suffix automaton with counts.

Knows a text's ids and the successors of its substrings; does not know what is drafted from them.
A state stands for the substrings that end at the same positions (Blumer et al., 1985), so its
members share occurrence count and successors. Only counts of substrings up to `max_length` are
kept true, which bounds the work of an append for texts that repeat themselves for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

ROOT = 0
_COUNT = itemgetter(0)


class TextAutomaton:
    """Substrings of one text. All lists are indexed by state.

    `longest` is the length of a state's longest member, `link` the state of the longest suffix
    that occurs elsewhere too, `successors` maps a token to the state behind it, `count` is the
    number of occurrences, `best` the most frequent successor token (-1: none; of equals the one
    seen last) and `best_count` its number of occurrences. `count`, `best` and `best_count` are
    true for members of at most `max_length` tokens and not kept for the root.

    `tail` is the state of the text's last `tail_length` = min(max_length, len(text)) tokens.
    """

    __slots__ = (
        "_last",
        "best",
        "best_count",
        "count",
        "link",
        "longest",
        "max_length",
        "successors",
        "tail",
        "tail_length",
    )

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.longest = [0]
        self.link = [-1]
        self.successors: list[dict[int, int]] = [{}]
        self.count = [0]
        self.best = [-1]
        self.best_count = [0]
        self.tail = ROOT
        self.tail_length = 0
        self._last = ROOT

    def extend(self, ids: Sequence[int]) -> None:
        """Append ids; amortised cost per id is the number of distinct counts among its tails."""
        longest = self.longest
        link = self.link
        successors = self.successors
        count = self.count
        best = self.best
        best_count = self.best_count
        max_length = self.max_length
        last = self._last
        tail = self.tail
        for token in ids:
            new = len(longest)
            longest.append(longest[last] + 1)
            link.append(ROOT)
            successors.append({})
            count.append(0)
            best.append(-1)
            best_count.append(0)
            state = last
            while state >= 0 and token not in successors[state]:
                successors[state][token] = new
                state = link[state]
            if state >= 0:
                target = successors[state][token]
                if longest[target] != longest[state] + 1:
                    target = self._split(target, state, token)
                link[new] = target
            last = new

            extended = tail
            tail = successors[tail][token]
            while longest[link[tail]] >= max_length:
                tail = link[tail]
            state = tail
            while state > ROOT:
                count[state] += 1
                state = link[state]
            # The old tails are the only strings that gained an occurrence of a successor.
            while extended > ROOT:
                occurrences = count[successors[extended][token]]
                if occurrences >= best_count[extended]:
                    best[extended] = token
                    best_count[extended] = occurrences
                extended = link[extended]
        self._last = last
        self.tail = tail
        self.tail_length = min(max_length, self.tail_length + len(ids))

    def follow_one(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest known tail of (the `length` tokens at `state`) + token: its state, length.

        Reads only; the result is (ROOT, 0) where not even the token is known.
        """
        link = self.link
        successors = self.successors
        target = successors[state].get(token)
        if target is None:
            longest = self.longest
            while target is None:
                if state == ROOT:
                    return ROOT, 0
                state = link[state]
                target = successors[state].get(token)
            length = longest[state]
        else:
            longest = self.longest
        length = min(length + 1, self.max_length)
        while longest[link[target]] >= length:
            target = link[target]
        return target, length

    def likeliest_path(
        self, state: int, limit: int, min_probability: float, unseen: int
    ) -> tuple[list[int], list[float]]:
        """The most frequent ids behind the members of `state`, and each one's probability.

        At most `limit` ids, while the probability of the whole path, a product of count ratios,
        is at least `min_probability`. `unseen` occurrences of the members are counted on top of
        those in the text. An occurrence at the text's end counts too: its next id is unknown.
        """
        ids: list[int] = []
        probabilities: list[float] = []
        probability = 1.0
        occurrences = self.count[state] + unseen
        for _ in range(limit):
            token = self.best[state]
            if token < 0:
                break
            probability *= self.best_count[state] / occurrences
            if probability < min_probability:
                break
            ids.append(token)
            probabilities.append(probability)
            state = self.successors[state][token]
            occurrences = self.count[state]
        return ids, probabilities

    def likeliest_followers(self, state: int) -> list[tuple[int, int]]:
        """(occurrences, id) of the ids behind the members of `state`, the most frequent first."""
        count = self.count
        # Where they are too long to be counted they have occurred all the same.
        followers = [(count[to] or 1, token) for token, to in self.successors[state].items()]
        if len(followers) > 1:
            followers.sort(key=_COUNT, reverse=True)
        return followers

    def _split(self, target: int, state: int, token: int) -> int:
        """Give the members of `target` that end more often than its longest a state of theirs."""
        longest = self.longest
        link = self.link
        successors = self.successors
        copy = len(longest)
        longest.append(longest[state] + 1)
        link.append(link[target])
        successors.append(dict(successors[target]))
        self.count.append(self.count[target])
        self.best.append(self.best[target])
        self.best_count.append(self.best_count[target])
        link[target] = copy
        while state >= 0 and successors[state].get(token) == target:
            successors[state][token] = copy
            state = link[state]
        return copy
