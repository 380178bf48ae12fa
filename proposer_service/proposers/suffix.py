"""Suffix decoding: the likeliest path behind the text's last tokens, by how often it occurred.

After SuffixDecoding (Oliaro et al., 2411.04975), with the rules and defaults of vLLM's `suffix`
method: a tree of this request's prompt and output, a global one of all outputs (per salt); for
each length m of a tail that occurs, a path of at most m * factor tokens; the path with the highest
sum of probabilities wins, of equals the longest tail's, and the request's own tree before the
global one. docs/proposers.md lists where this differs from arctic-inference, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proposer_service.proposers.base import (
    MAX_OUTCOMES,
    NO_DRAFT,
    Complete,
    Draft,
    Outcome,
    Proposer,
)
from proposer_service.proposers.output_trie import OutputTrie, Place
from proposer_service.proposers.suffix_ends import End, Ends, Standpoint, likeliest_ends
from proposer_service.proposers.suffix_options import DraftLimits, SuffixOptions
from proposer_service.proposers.text_automaton import ROOT, TextAutomaton

# What rests on a single token is a guess at every token of the text: look-ahead leaves it out.
_LEAST_MATCH_AHEAD = 2
# Ends of one round that look-ahead names; rarer ones are left out, too.
_MOST_ENDS = 128


@dataclass(slots=True)
class _CachedOutput:
    """One request's place in a global tree; not `held` once it was evicted."""

    key: int
    trie: OutputTrie
    number: int
    salt: str
    held: bool = True
    # Ids that the trie does not have yet.
    waiting: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Text:
    """One sequence. `recent` are its last max_tree_depth ids."""

    automaton: TextAutomaton
    prompt_length: int
    salt: str
    cached: _CachedOutput | None
    length: int = 0
    recent: tuple[int, ...] = ()


class SuffixProposer(Proposer):
    """vLLM's `suffix`; one request's output is visible to others of its salt."""

    def __init__(self, options: SuffixOptions | None = None) -> None:
        self._options = options or SuffixOptions()
        self._texts: dict[int, _Text] = {}
        self._tries: dict[str, OutputTrie] = {}
        # In the order of opening, which is the order of eviction.
        self._cached: dict[int, _CachedOutput] = {}
        self._next_cached = 0
        # Those whose new ids enter the trie with the next `settle`.
        self._waiting: dict[int, _CachedOutput] = {}
        self._limits: dict[int, DraftLimits] = {}

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        cached = self._new_cached(salt) if self._options.max_cached_requests else None
        automaton = TextAutomaton(self._options.max_tree_depth)
        self._texts[sequence_id] = _Text(automaton, prompt_length, salt, cached)
        self.extend(sequence_id, ids)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        text = self._texts[sequence_id]
        before = text.length
        text.automaton.extend(ids)
        text.length += len(ids)
        text.recent = (*text.recent, *ids)[-self._options.max_tree_depth :]
        cached = text.cached
        if cached is not None and cached.held:
            output = ids[max(0, text.prompt_length - before) :]
            if output:
                cached.waiting.extend(output)
                self._waiting[cached.key] = cached

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        return self._best(self._texts[sequence_id], (), None, max_draft_tokens)

    def lookahead(
        self, sequence_id: int, draft: Draft, max_draft_tokens: int
    ) -> Iterator[Outcome | Complete]:
        """The likeliest ends behind which a draft would rest on two tokens or more.

        All other ends are left out as not worth a wait. Counts are those of now, so a draft may
        differ a little from what `propose` says once the outcome is committed.
        """
        text = self._texts[sequence_id]
        least = self._limits_of(max_draft_tokens).least_match
        ends = Ends(text.automaton, self._tries.get(text.salt), text.recent)
        likeliest: list[End] = []
        if least is not None:
            tail = max(_LEAST_MATCH_AHEAD, least) - 1
            likeliest = likeliest_ends(ends, draft.ids, draft.confidences, tail, _MOST_ENDS)
        yield Complete([(end.kept, end.token) for end in likeliest])
        for kept, token, before in likeliest[:MAX_OUTCOMES]:
            outcome = (*draft.ids[:kept], token)
            guess = self._best(text, outcome, ends.after(before, token), max_draft_tokens)
            if guess.ids:
                yield Outcome(outcome, guess)

    def close(self, sequence_id: int, finished: bool) -> None:
        cached = self._texts.pop(sequence_id).cached
        if cached is None or not cached.held:
            return
        if finished:
            self.settle()
            cached.trie.finish(cached.number)
        else:
            self._evict(cached)

    def settle(self) -> None:
        """Show the new ids of all outputs to the other requests."""
        for cached in self._waiting.values():
            cached.trie.extend(cached.number, cached.waiting)
            cached.waiting.clear()
        self._waiting.clear()

    def _new_cached(self, salt: str) -> _CachedOutput:
        while len(self._cached) >= self._options.max_cached_requests:
            self._evict(next(iter(self._cached.values())))
        trie = self._tries.get(salt)
        if trie is None:
            trie = self._tries[salt] = OutputTrie(self._options.max_tree_depth)
        cached = _CachedOutput(self._next_cached, trie, trie.add(), salt)
        self._cached[self._next_cached] = cached
        self._next_cached += 1
        return cached

    def _evict(self, cached: _CachedOutput) -> None:
        cached.held = False
        del self._cached[cached.key]
        self._waiting.pop(cached.key, None)
        cached.trie.remove(cached.number)
        if not len(cached.trie):
            del self._tries[cached.salt]

    def _limits_of(self, max_draft_tokens: int) -> DraftLimits:
        limits = self._limits.get(max_draft_tokens)
        if limits is None:
            limits = self._limits[max_draft_tokens] = DraftLimits(self._options, max_draft_tokens)
        return limits

    def _best(
        self,
        text: _Text,
        extra: tuple[int, ...],
        standpoint: Standpoint | None,
        max_draft_tokens: int,
    ) -> Draft:
        """The draft behind text + `extra`, which stands at `standpoint`; None: `extra` is empty."""
        automaton = text.automaton
        state, length, places = automaton.tail, automaton.tail_length, None
        if standpoint is not None:
            state, length, places = standpoint.state, standpoint.length, standpoint.places
        limits = self._limits_of(max_draft_tokens)
        recent = text.recent
        if extra:
            recent = (*recent, *extra)[-self._options.max_tree_depth :]
        # `extra` did not happen yet, so the automaton has not counted this tail itself.
        draft, score = self._best_local(
            automaton, state, min(length, len(recent) - 1), limits, 1 if extra else 0
        )
        trie = self._tries.get(text.salt)
        if trie is None:
            return draft
        if places is None:
            places = _known_tails(trie, recent, *limits.lengths_above(score, len(recent) - 1))
        if not places:
            return draft
        output_length = text.length + len(extra) - text.prompt_length
        if text.cached is None or not text.cached.held:
            output_length = 0
        other = self._best_global(trie, recent, places, output_length, limits, score)
        return draft if other is None else other

    def _best_local(
        self, automaton: TextAutomaton, state: int, length: int, limits: DraftLimits, unseen: int
    ) -> tuple[Draft, float]:
        best: tuple[list[int], list[float]] = ([], [])
        best_score = 0.0
        match_length = 0
        while state != ROOT:
            shorter = automaton.longest[automaton.link[state]]
            # All tails of one state go on in the same way: the one that may draft most does best.
            allowed = max(limits.by_length[shorter + 1 : length + 1], default=0)
            if allowed > best_score:
                ids, probabilities = automaton.likeliest_path(
                    state, allowed, self._options.min_token_prob, unseen
                )
                score = sum(probabilities)
                if score > best_score:
                    best = (ids, probabilities)
                    best_score = score
                    match_length = length
                    while limits.by_length[match_length] < len(ids):
                        match_length -= 1
            state = automaton.link[state]
            length = min(length, shorter)
        if not best[0]:
            return NO_DRAFT, 0.0
        return Draft(tuple(best[0]), match_length, tuple(best[1])), best_score

    def _best_global(
        self,
        trie: OutputTrie,
        recent: tuple[int, ...],
        places: dict[int, Place],
        output_length: int,
        limits: DraftLimits,
        score_to_beat: float,
    ) -> Draft | None:
        """`places` are some of the tails of `recent`, the longest one that may draft among them."""
        size = len(recent)
        by_length = limits.by_length
        min_probability = self._options.min_token_prob
        best: tuple[list[int], list[float]] | None = None
        best_score = score_to_beat
        match_length = 0
        for length in limits.order(max(places)):
            limit = by_length[length]
            if limit < best_score:
                break
            place = places.get(length) or trie.find(recent, size - length)
            if place is None:
                continue
            # The tail itself lies in the output, but its window is not complete.
            unseen = 1 if length <= output_length else 0
            path = trie.likeliest_path(place, length, limit, min_probability, unseen)
            score = sum(path[1])
            if score > best_score or (best and score == best_score and length > match_length):
                best = path
                best_score = score
                match_length = length
        if best is None:
            return None
        return Draft(tuple(best[0]), match_length, tuple(best[1]))


def _known_tails(
    trie: OutputTrie, recent: tuple[int, ...], first: int, last: int
) -> dict[int, Place]:
    """Where tails of `recent` end in the trie, by length; the longest one that occurs among them.

    Only lengths from `first` to `last` count. A tail occurs only where all shorter ones do.
    """
    places: dict[int, Place] = {}
    size = len(recent)
    known, unknown = first - 1, last + 1
    # Of all texts about a third match two tokens or fewer, a third three or four.
    step = 3
    while known + 1 < unknown:
        probe = min(known + step, last) if step else (known + unknown) // 2
        place = trie.find(recent, size - probe)
        if place is None:
            unknown = probe
            step = 0
        else:
            places[probe] = place
            known = probe
            step *= 2
    return places
