"""Behind which next tokens suffix decoding would go on: the ends of a round in flight.

Knows where a text's tails lie in the request's own automaton and in the global trie; does not know
what is drafted there. A text that goes on by one token has the old tails, each one token longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from proposer_service.proposers.output_trie import OutputTrie, Place
from proposer_service.proposers.text_automaton import ROOT, TextAutomaton

# Ends of one position that are looked at, the likeliest first.
MAX_FOLLOWERS = 32
# The likeliest are the least.
_WEIGHT = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Standpoint:
    """The tails of a text: its longest local one, `length` ids at `state`, and all global ones.

    `places` has every length of a tail that occurs in the trie, without a gap.
    """

    state: int
    length: int
    places: dict[int, Place]


class End(NamedTuple):
    """`kept` ids of the draft and `token` behind them, from where one sees them."""

    kept: int
    token: int
    before: Standpoint


class Ends:
    """Standpoints of one text, whose last ids are `recent`, and of its possible continuations.

    Valid until automaton or trie change. `trie` None: there is no global one.
    """

    def __init__(
        self, automaton: TextAutomaton, trie: OutputTrie | None, recent: tuple[int, ...]
    ) -> None:
        self._automaton = automaton
        self._trie = trie
        self._recent = recent

    def here(self) -> Standpoint:
        """Where the text stands now."""
        automaton, trie, recent = self._automaton, self._trie, self._recent
        places: dict[int, Place] = {}
        size = len(recent)
        while trie is not None and len(places) + 1 < size:
            place = trie.find(recent, size - len(places) - 1)
            if place is None:
                break
            places[len(places) + 1] = place
        return Standpoint(automaton.tail, automaton.tail_length, places)

    def after(self, standpoint: Standpoint, token: int) -> Standpoint:
        """Where the text stands once `token` follows."""
        state, length = self._automaton.follow(standpoint.state, standpoint.length, (token,))
        trie = self._trie
        places: dict[int, Place] = {}
        place = None if trie is None else trie.find((token,), 0)
        if trie is not None and place is not None:
            places[1] = place
            for tail, longer in standpoint.places.items():
                # Tails that fill a window have nothing behind them.
                if tail + 1 >= self._automaton.max_length:
                    break
                place = trie.follow(longer, tail, token)
                if place is None:
                    break
                places[tail + 1] = place
        return Standpoint(state, length, places)

    def followers(self, standpoint: Standpoint, least_tail: int) -> Sequence[int]:
        """What has followed tails of at least `least_tail` ids, the longest ones' followers first.

        At most MAX_FOLLOWERS; among those of one tail the most frequent first.
        """
        found: dict[int, None] = {}
        automaton, trie = self._automaton, self._trie
        state, local = standpoint.state, standpoint.length
        places = standpoint.places
        tail = max(local, len(places))
        while tail >= least_tail and len(found) < MAX_FOLLOWERS:
            if state != ROOT and local >= tail:
                found.update(dict.fromkeys(automaton.likeliest_followers(state)))
                state = automaton.link[state]
                local = automaton.longest[state]
            if trie is not None and tail in places:
                likeliest = trie.likeliest_followers(places[tail], tail, MAX_FOLLOWERS)
                found.update(dict.fromkeys(likeliest))
            tail -= 1
        return list(found)[:MAX_FOLLOWERS]


def likeliest_ends(
    ends: Ends,
    draft_ids: Sequence[int],
    survivals: Sequence[float],
    least_tail: int,
    most: int,
) -> list[End]:
    """The `most` likeliest ends of a round that verifies `draft_ids` or its beginning.

    `survivals` are the draft's confidences. How likely a follower is counts by its rank only:
    the counts of the few tails that a text matches say no more.
    """
    weighed: list[tuple[float, int, int, Standpoint]] = []
    standpoint = ends.here()
    reached = 1.0
    for kept in range(len(draft_ids) + 1):
        drafted = draft_ids[kept] if kept < len(draft_ids) else None
        going_on = survivals[kept] if drafted is not None else 0.0
        rank = 0
        for token in ends.followers(standpoint, least_tail):
            if token == drafted:
                # Only where the verifier verified fewer than were drafted.
                weighed.append((-going_on, kept, token, standpoint))
                continue
            rank += 1
            weighed.append(((going_on - reached) / rank, kept, token, standpoint))
        if drafted is not None:
            standpoint = ends.after(standpoint, drafted)
            reached = going_on
    weighed.sort(key=_WEIGHT)
    return [End(kept, token, before) for _, kept, token, before in weighed[:most]]
