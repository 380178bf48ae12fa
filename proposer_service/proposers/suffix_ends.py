"""Behind which next tokens suffix decoding would go on: the ends of a round in flight.

Knows where a text's tails lie in the request's own automaton and in the global trie; does not know
what is drafted there. A text that goes on by one token has the old tails, each one token longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from proposer_service.proposers.output_trie import OutputTrie, Place
from proposer_service.proposers.text_automaton import ROOT, TextAutomaton

# Ends of one position that are looked at, the likeliest first.
MAX_FOLLOWERS = 32
# How sure an end is of which the verifier says so only where it verified fewer than were drafted:
# nothing at all is the most usual of these.
_NOTHING_VERIFIED = 0.3
_FEWER_VERIFIED = 0.05
# What is left to unseen followers where a shorter tail has none that a longer one has not.
_CONFIRMED = 0.7
# A drafted token that no longer tail vouches for.
_UNFORESEEN = 0.3
_WEIGHT = itemgetter(0)


class Standpoint(NamedTuple):
    """The tails of a text: its longest local one, `length` ids at `state`, and all global ones.

    `places[n]` is where the tail of n + 1 ids ends in the trie, for all tails that occur there.
    """

    state: int
    length: int
    places: list[Place]


class End(NamedTuple):
    """`kept` ids of the draft and `token` behind them, from where one sees them."""

    weight: float
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
        automaton, trie = self._automaton, self._trie
        places = [] if trie is None else trie.tails(self._recent)
        return Standpoint(automaton.tail, automaton.tail_length, places)

    def after(self, standpoint: Standpoint, token: int) -> Standpoint:
        """Where the text stands once `token` follows."""
        state, length, places = standpoint
        state, length = self._automaton.follow_one(state, length, token)
        trie = self._trie
        return Standpoint(state, length, places if trie is None else trie.follow(places, token))

    def followers(
        self, standpoint: Standpoint, least_tail: int, least_weight: float
    ) -> dict[int, float]:
        """What has followed tails of at least `least_tail` ids, and how likely each one is.

        The longest tails' followers first; at most MAX_FOLLOWERS; those less likely than
        `least_weight` may be missing. Each tail leaves to the shorter ones what its own counts
        leave open, the less the longer it is (as prediction by partial matching does).
        """
        found: dict[int, float] = {}
        automaton, trie = self._automaton, self._trie
        state, local, places = standpoint
        tail = max(local, len(places))
        open_share = 1.0
        while tail >= least_tail and open_share > least_weight and len(found) < MAX_FOLLOWERS:
            levels = []
            if state != ROOT and local >= tail:
                levels.append(automaton.likeliest_followers(state))
                state = automaton.link[state]
                local = automaton.longest[state]
            if trie is not None and tail <= len(places):
                levels.append(trie.likeliest_followers(places[tail - 1], tail, MAX_FOLLOWERS))
            for level in levels:
                fresh = [pair for pair in level if pair[1] not in found]
                if not fresh:
                    open_share *= _CONFIRMED
                    continue
                seen = tail * sum(map(_WEIGHT, fresh))
                share = open_share / (seen + len(fresh))
                per_count = share * tail
                for count, token in fresh[: MAX_FOLLOWERS - len(found)]:
                    if per_count * count < least_weight:
                        break
                    found[token] = per_count * count
                open_share = share * len(fresh)
            tail -= 1
        return found


def likeliest_ends(
    ends: Ends,
    draft_ids: Sequence[int],
    least_tail: int,
    least_weight: float,
    most: int,
) -> list[End]:
    """The `most` likeliest ends of a round that verifies `draft_ids` or its beginning.

    Those less likely than `least_weight` may be missing; 0 is all.
    """
    weighed: list[End] = []
    standpoint = ends.here()
    reached = 1.0
    last = len(draft_ids)
    for kept in range(last + 1):
        if reached < least_weight:
            break
        drafted = draft_ids[kept] if kept < last else None
        followers = ends.followers(standpoint, least_tail, least_weight / reached)
        for token, share in followers.items():
            weight = reached * share
            if token == drafted:
                weight *= _FEWER_VERIFIED if kept else _NOTHING_VERIFIED
            if weight >= least_weight:
                weighed.append(End(weight, kept, token, standpoint))
        if drafted is not None:
            standpoint = ends.after(standpoint, drafted)
            reached *= followers.get(drafted, _UNFORESEEN)
    weighed.sort(key=_WEIGHT, reverse=True)
    return weighed[:most]
