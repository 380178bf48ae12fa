"""Prompt lookup: what followed the first earlier occurrence of the text's last tokens.

The result is vLLM's `ngram` method exactly: among window lengths n in [min, max] the longest whose
last n tokens occurred earlier in prompt or output (the occurrence may overlap them); among its
occurrences the earliest; then up to K of the tokens that followed, fewer where the text ends.
Instead of scanning the text at every step, each n-gram's first end is remembered as it appears, and
for look-ahead the tokens that complete a shortest window: behind no other token is there a draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from proposer_service.proposers.base import (
    MAX_NAMED,
    MAX_OUTCOMES,
    NO_DRAFT,
    Ahead,
    Complete,
    Draft,
    Outcome,
    Pause,
    Proposer,
)

# Outcomes prepared where windows of one token make every token of the text a candidate.
_LIKELIEST = 4
_LIKELIEST_POSITIONS = 2
# How often a copy goes on by one more token, by a whole draft and one more at least; how often what
# follows no match has followed a shorter one; and how often less than the draft is verified, where
# that is nothing and otherwise. They decide only what is prepared first.
_COPY_GOES_ON = 0.8
_ALL_ACCEPTED = 0.1
_SEEN_BEFORE = 0.5
_NOTHING_VERIFIED = 0.3
_FEWER_VERIFIED = 0.05
# Ends that are less likely are prepared once those of all sequences are that are not.
_LIKELY = 0.025
_Weighed = tuple[float, int, int, tuple[int, ...]]
_WEIGHT = itemgetter(0)


class _IndexedText:
    """One text and, for each of its n-grams, the length of the text when it first ended.

    `match_length` and `match_end` describe the current match; length 0 means there is none.
    `_followers` holds, for each of its strings one shorter than the least window, the distinct ids
    behind it, oldest first; where that is a single one, the bare id.
    """

    __slots__ = ("_first_end", "_followers", "_windows", "ids", "match_end", "match_length")

    def __init__(self, windows: range) -> None:
        self.ids: list[int] = []
        self.match_length = 0
        self.match_end = 0
        self._windows = windows
        self._first_end: dict[tuple[int, ...], int] = {}
        self._followers: dict[tuple[int, ...], int | list[int]] = {}

    def extend(self, new_ids: Sequence[int]) -> None:
        ids = self.ids
        first_end = self._first_end
        windows = self._windows
        shortest = windows[0]
        longest = windows[-1]
        match_length = match_end = 0
        for token in new_ids:
            ids.append(token)
            end = len(ids)
            tail = tuple(ids[-longest:])
            held = len(tail)
            match_length = 0
            for n in windows:
                if n > held:
                    break
                seen = first_end.setdefault(tail[held - n :], end)
                if seen != end:
                    match_length = n
                    match_end = seen
                elif n == shortest > 1:
                    self._add_follower(tail[held - n : held - 1], token)
        if new_ids:
            self.match_length = match_length
            self.match_end = match_end

    def ending(self, extra: tuple[int, ...]) -> tuple[int, ...]:
        """The last ids of text + `extra`: every window that ends inside `extra` lies in them."""
        return (*self.ids[-self._windows[-1] :], *extra)

    def followers(self, tail: tuple[int, ...]) -> Sequence[int]:
        """The ids behind which a window would match, where `tail` ends the text until then.

        What was drafted for the text may be part of the tail: its windows lie in the text, too.
        """
        found = self._followers.get(tail[len(tail) - self._windows[0] + 1 :], ())
        return (found,) if isinstance(found, int) else found

    def matches(self, tail: tuple[int, ...], fresh: int) -> list[tuple[int, int]]:
        """(n, end of the first occurrence of the last n ids), n rising.

        `tail` ends a text whose last `fresh` ids are not in this one; see `ending`.
        """
        held = len(tail)
        length = len(self.ids) + fresh
        offset = length - held
        last = tail[held - 1]
        inside = [end for end in range(held - fresh + 1, held) if tail[end - 1] == last]
        found = []
        for n in self._windows:
            if n > held:
                break
            gram = tail[held - n :]
            seen = self._first_end.get(gram, length)
            if seen == length:
                ends = (end for end in inside if end >= n and tail[end - n : end] == gram)
                first_inside = next(ends, None)
                if first_inside is None:
                    # A longer n-gram cannot have occurred where this one did not.
                    break
                seen = offset + first_inside
            found.append((n, seen))
        return found

    def token_at(self, position: int, extra: tuple[int, ...]) -> int | None:
        """The id at a position of text + `extra`; None at its end."""
        beyond = position - len(self.ids)
        if beyond < 0:
            return self.ids[position]
        return extra[beyond] if beyond < len(extra) else None

    def copied(self, draft: tuple[int, ...]) -> int | None:
        """What is copied next where the whole of the current match's draft is right."""
        return self.token_at(self.match_end + len(draft), draft) if self.match_length else None

    def draft(self, tail: tuple[int, ...], fresh: int, max_draft_tokens: int) -> Draft:
        """What would be proposed for a text that ends in `tail`; see `matches`."""
        n, start = self._longest_match(tail, fresh)
        if not n:
            return NO_DRAFT
        ids = self.ids[start : start + max_draft_tokens]
        if len(ids) < max_draft_tokens:
            extra = tail[len(tail) - fresh :]
            beyond = max(0, start - len(self.ids))
            ids.extend(extra[beyond : beyond + max_draft_tokens - len(ids)])
        return Draft(tuple(ids), n)

    def _longest_match(self, tail: tuple[int, ...], fresh: int) -> tuple[int, int]:
        """The last of `matches`, (0, 0) where there is none."""
        held = len(tail)
        if tail[-1] in tail[held - fresh : held - 1]:
            matches = self.matches(tail, fresh)
            return matches[-1] if matches else (0, 0)
        # No window can have occurred among the fresh ids.
        first_end = self._first_end
        longest = end = 0
        for n in self._windows:
            seen = first_end.get(tail[held - n :]) if n <= held else None
            if seen is None:
                break
            longest, end = n, seen
        return longest, end

    def _add_follower(self, behind: tuple[int, ...], token: int) -> None:
        """Called once for each pair: its window has just been seen for the first time."""
        followers = self._followers
        known = followers.get(behind)
        if known is None:
            followers[behind] = token
        elif isinstance(known, int):
            followers[behind] = [known, token]
        else:
            known.append(token)


def check_windows(prompt_lookup_min: int, prompt_lookup_max: int) -> None:
    """Raises ValueError unless 1 <= min <= max."""
    if not 1 <= prompt_lookup_min <= prompt_lookup_max:
        raise ValueError(
            f"prompt_lookup_min={prompt_lookup_min}, prompt_lookup_max={prompt_lookup_max}: "
            "1 <= min <= max is required"
        )


class NgramProposer(Proposer):
    """vLLM's `ngram`; windows of `prompt_lookup_min` to `prompt_lookup_max` tokens."""

    def __init__(self, prompt_lookup_min: int = 5, prompt_lookup_max: int = 5) -> None:
        check_windows(prompt_lookup_min, prompt_lookup_max)
        self._windows = range(prompt_lookup_min, prompt_lookup_max + 1)
        self._texts: dict[int, _IndexedText] = {}

    def open(self, sequence_id: int, ids: Sequence[int], prompt_length: int, salt: str) -> None:
        """Texts share nothing, so `prompt_length` and `salt` have no effect."""
        text = self._texts[sequence_id] = _IndexedText(self._windows)
        text.extend(ids)

    def extend(self, sequence_id: int, ids: Sequence[int]) -> None:
        self._texts[sequence_id].extend(ids)

    def propose(self, sequence_id: int, max_draft_tokens: int) -> Draft:
        text = self._texts[sequence_id]
        if not text.match_length:
            return NO_DRAFT
        start = text.match_end
        return Draft(tuple(text.ids[start : start + max_draft_tokens]), text.match_length)

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Iterator[Ahead]:
        """Every end behind which there is a draft, unless windows of one token match too many."""
        text = self._texts[sequence_id]
        if self._windows[0] == 1:
            return self._likeliest(text, draft, max_draft_tokens)
        return self._all(text, draft, max_draft_tokens)

    def close(self, sequence_id: int, finished: bool) -> None:
        del self._texts[sequence_id]

    def _all(self, text: _IndexedText, draft: Draft, max_draft_tokens: int) -> Iterator[Ahead]:
        ids = draft.ids
        last = len(ids)
        ends: list[tuple[int, int]] = []
        weighed: list[_Weighed] = []
        reached = 1.0
        for kept in range(last + 1):
            before = text.ending(ids[:kept])
            followers = text.followers(before)
            copied = ids[kept] if kept < last else text.copied(ids)
            others = len(followers) - (copied in followers)
            share = _SEEN_BEFORE if copied is None else 1 - _COPY_GOES_ON
            other = reached * share / others if others else 0.0
            reached *= _COPY_GOES_ON
            ends += [(kept, token) for token in followers]
            # What followed last comes first of what is equally likely.
            for token in reversed(followers):
                weight = other
                if token == copied:
                    if kept == last:
                        weight = max(reached, _ALL_ACCEPTED)
                    else:
                        weight = reached * (_FEWER_VERIFIED if kept else _NOTHING_VERIFIED)
                weighed.append((weight, kept, token, before))
        if len(ends) <= MAX_NAMED:
            yield Complete(ends)
        weighed.sort(key=_WEIGHT, reverse=True)
        likely = True
        for weight, kept, token, before in weighed[:MAX_OUTCOMES]:
            if likely and weight < _LIKELY:
                likely = False
                yield Pause.UNLIKELY
            guess = text.draft((*before, token), kept + 1, max_draft_tokens)
            yield Outcome((*ids[:kept], token), guess)

    def _likeliest(
        self, text: _IndexedText, draft: Draft, max_draft_tokens: int
    ) -> Iterator[Outcome]:
        """All accepted and the copy goes on; then rejections where a shorter window disagrees."""
        if not draft.ids:
            return
        ends = []
        guess = text.token_at(text.match_end + len(draft.ids), draft.ids)
        if guess is not None:
            ends.append((*draft.ids, guess))
        if len(self._windows) > 1:
            for kept in range(min(len(draft.ids), _LIKELIEST_POSITIONS)):
                accepted = draft.ids[:kept]
                other = self._second_opinion(text, accepted, draft.ids[kept])
                if other is not None and len(ends) < _LIKELIEST:
                    ends.append((*accepted, other))
        for ids in ends:
            ahead = text.draft(text.ending(ids), len(ids), max_draft_tokens)
            if ahead.ids:
                yield Outcome(ids, ahead)

    def _second_opinion(
        self, text: _IndexedText, accepted: tuple[int, ...], refused: int
    ) -> int | None:
        for _, start in reversed(text.matches(text.ending(accepted), len(accepted))):
            token = text.token_at(start, accepted)
            if token != refused:
                return token
        return None
