"""The path that suffix decoding drafts behind a text's tails, the request's own or all outputs'.

Knows automaton, trie and limits; does not know requests, nor which of their ends are prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proposer_service.proposers.base import NO_DRAFT, Draft
from proposer_service.proposers.output_trie import OutputTrie, Place
from proposer_service.proposers.suffix_options import DraftLimits
from proposer_service.proposers.text_automaton import ROOT, TextAutomaton


class Path(NamedTuple):
    """Drafted ids, the probability that each is reached and right, and the tail they rest on."""

    ids: list[int]
    probabilities: list[float]
    score: float
    match_length: int

    def draft(self) -> Draft:
        return Draft(tuple(self.ids), self.match_length, tuple(self.probabilities))


NO_PATH = Path([], [], 0.0, 0)
# A sum of equal shares may come out above their product.
_ROUNDING = 1 + 1e-9


def best_local(
    automaton: TextAutomaton, state: int, length: int, limits: DraftLimits, unseen: int
) -> Path:
    """The best path behind the tail of `length` ids at `state` and its own tails.

    `unseen`: 1 where the automaton has not counted this tail at the text's end.
    """
    best: tuple[list[int], list[float]] = ([], [])
    best_score = 0.0
    best_length = 0
    longest, link, by_length = automaton.longest, automaton.link, limits.by_length
    count, best_count = automaton.count, automaton.best_count
    peak = limits.peak
    while state != ROOT:
        behind = link[state]
        shorter = longest[behind]
        if shorter < length:
            # All tails of one state go on in the same way: the one that may draft most does best.
            most = length if length < peak else peak if peak > shorter else shorter + 1
            allowed = by_length[most]
            # Probabilities never rise along a path.
            bound = allowed * best_count[state] / (count[state] + unseen)
            if bound * _ROUNDING > best_score:
                path = automaton.likeliest_path(state, allowed, limits.min_probability, unseen)
                score = sum(path[1])
                if score > best_score:
                    best, best_score, best_length = path, score, length
            length = shorter
        state = behind
    if not best_length:
        return NO_PATH
    drafted = len(best[0])
    while by_length[best_length] < drafted:
        best_length -= 1
    return Path(*best, best_score, best_length)


def best_global(
    trie: OutputTrie,
    places: Sequence[Place | None],
    recent: tuple[int, ...],
    output_length: int,
    limits: DraftLimits,
    local: Path,
) -> Path:
    """The best path behind the tails of a text; `local` where none beats that.

    `places[n]` is where the tail of n + 1 ids ends, the last one's where the longest tail ends that
    occurs and may beat `local`; a None is looked up with `recent`, the text's last ids. The text's
    last `output_length` ids are output.
    """
    best = local
    best_score = local.score
    by_length = limits.by_length
    size = len(recent)
    for length in limits.order(len(places)):
        limit = by_length[length]
        if limit < best_score:
            break
        place = places[length - 1] or trie.find(recent, size - length)
        if place is None:
            continue
        # The tail itself lies in the output, but its window is not complete.
        unseen = 1 if length <= output_length else 0
        ids, probabilities = trie.likeliest_path(
            place, length, limit, limits.min_probability, unseen
        )
        score = sum(probabilities)
        if score > best_score or (
            score == best_score and best is not local and length > best.match_length
        ):
            best = Path(ids, probabilities, score, length)
            best_score = score
    return best


def known_tails(
    trie: OutputTrie, recent: tuple[int, ...], first: int, last: int
) -> list[Place | None]:
    """Where tails of `recent` end in the trie, as in `best_global`; some of them are None.

    Only lengths from `first` to `last` count. A tail occurs only where all shorter ones do.
    """
    places: list[Place | None] = [None] * last
    size = len(recent)
    known, unknown = first - 1, last + 1
    found = 0
    # Of all texts about a third match two tokens or fewer, a third three or four.
    step = 3
    while known + 1 < unknown:
        probe = min(known + step, last) if step else (known + unknown) // 2
        place = trie.find(recent, size - probe)
        if place is None:
            unknown = probe
            step = 0
        else:
            places[probe - 1] = place
            found = known = probe
            step *= 2
    del places[found:]
    return places


def best_draft(
    automaton: TextAutomaton,
    trie: OutputTrie | None,
    recent: tuple[int, ...],
    output_length: int,
    limits: DraftLimits,
) -> Draft:
    """The draft behind a text whose last ids are `recent`, `output_length` of them output."""
    longest = len(recent) - 1
    local = best_local(automaton, automaton.tail, min(automaton.tail_length, longest), limits, 0)
    if trie is not None:
        places = known_tails(trie, recent, *limits.lengths_above(local.score, longest))
        if places:
            local = best_global(trie, places, recent, output_length, limits, local)
    return local.draft() if local.ids else NO_DRAFT
