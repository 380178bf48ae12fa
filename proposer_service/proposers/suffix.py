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
    Ahead,
    Complete,
    Draft,
    Outcome,
    Pause,
    Proposer,
)
from proposer_service.proposers.output_trie import OutputTrie
from proposer_service.proposers.suffix_drafts import best_draft, best_global, best_local
from proposer_service.proposers.suffix_ends import End, Ends, likeliest_ends
from proposer_service.proposers.suffix_options import DraftLimits, SuffixOptions
from proposer_service.proposers.text_automaton import TextAutomaton

# What rests on a single token is a guess at every token of the text: look-ahead leaves it out.
_LEAST_MATCH_AHEAD = 2
# Ends of one round that look-ahead names; rarer ones are left out, too.
_MOST_ENDS = 128
# What is named and prepared first, since there may be no time for more: the ends that are likelier
# than this, and no more of them than that.
_LIKELY = 0.02
_MOST_LIKELY = 12


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

    @property
    def shown(self) -> bool:
        """Whether its output has a place in a global tree."""
        return self.cached is not None and self.cached.held

    @property
    def output_length(self) -> int:
        """How many of the last ids are output that a global tree will count; not below 0."""
        return max(0, self.length - self.prompt_length) if self.shown else 0


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
        text = self._texts[sequence_id]
        return best_draft(
            text.automaton,
            self._tries.get(text.salt),
            text.recent,
            text.output_length,
            self._limits_of(max_draft_tokens),
        )

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Iterator[Ahead]:
        """The likeliest ends behind which a draft would rest on two tokens or more.

        First the few that are likely: each stands for a wait where its block is not ready, and
        looking for the others takes longer. All others come after their blocks, and are named then.
        Counts are those of now, so a draft may differ a little from what `propose` says once the
        outcome is committed.
        """
        text = self._texts[sequence_id]
        limits = self._limits_of(max_draft_tokens)
        if limits.least_match is None:
            yield Complete()
            return
        tail = max(_LEAST_MATCH_AHEAD, limits.least_match) - 1
        ends = Ends(text.automaton, self._tries.get(text.salt), text.recent)
        likely = likeliest_ends(ends, draft.ids, tail, _LIKELY, _MOST_LIKELY)
        yield Complete(_named(likely))
        yield from self._outcomes(text, ends, draft, likely, limits)
        yield Pause.UNLIKELY
        everything = likeliest_ends(ends, draft.ids, tail, 0.0, _MOST_ENDS)
        prepared = set(_named(likely))
        others = [end for end in everything if end[1:3] not in prepared]
        yield from self._outcomes(text, ends, draft, others[: MAX_OUTCOMES - len(likely)], limits)
        yield Complete(_named([*likely, *others]))

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

    def _outcomes(
        self, text: _Text, ends: Ends, draft: Draft, likely: list[End], limits: DraftLimits
    ) -> Iterator[Outcome]:
        automaton, trie = text.automaton, self._tries.get(text.salt)
        recent_length, output_length = len(text.recent), text.output_length
        shown = text.shown
        depth = self._options.max_tree_depth
        for _, kept, token, before in likely:
            state, length, places = ends.after(before, token)
            longest = min(depth, recent_length + kept + 1) - 1
            # It did not happen yet, so the automaton has not counted this tail itself.
            path = best_local(automaton, state, min(length, longest), limits, 1)
            if trie is not None and places:
                known = output_length + kept + 1 if shown else 0
                path = best_global(trie, places, (), known, limits, path)
            if path.ids:
                yield Outcome((*draft.ids[:kept], token), path.draft())


def _named(ends: list[End]) -> list[tuple[int, int]]:
    return [(kept, token) for _, kept, token, _ in ends]
