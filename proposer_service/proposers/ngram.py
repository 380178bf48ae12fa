"""Prompt lookup: what followed the first earlier occurrence of the text's last tokens.

The result is vLLM's `ngram` method exactly: among window lengths n in [min, max] the longest whose
last n tokens occurred earlier in prompt or output (the occurrence may overlap them); among its
occurrences the earliest; then up to K of the tokens that followed, fewer where the text ends.
Instead of scanning the text at every step, each n-gram's first end is remembered as it appears.
"""

from __future__ import annotations

from collections.abc import Sequence

from proposer_service.proposers.base import MAX_OUTCOMES, NO_DRAFT, Draft, Outcome, Proposer

# Draft positions at which look-ahead considers a rejection.
_LOOKAHEAD_POSITIONS = 2


class _IndexedText:
    """One text and, for each of its n-grams, the length of the text when it first ended.

    `match_length` and `match_end` describe the current match; length 0 means there is none.
    """

    __slots__ = ("_first_end", "_windows", "ids", "match_end", "match_length")

    def __init__(self, windows: range) -> None:
        self.ids: list[int] = []
        self.match_length = 0
        self.match_end = 0
        self._windows = windows
        self._first_end: dict[tuple[int, ...], int] = {}

    def extend(self, new_ids: Sequence[int]) -> None:
        ids = self.ids
        first_end = self._first_end
        windows = self._windows
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
        if new_ids:
            self.match_length = match_length
            self.match_end = match_end

    def matches(self, extra: tuple[int, ...]) -> list[tuple[int, int]]:
        """(n, end of the first occurrence of the last n ids) for text + `extra`, n rising."""
        longest = self._windows[-1]
        # Enough of the text that every n-gram ending inside `extra` can be read.
        tail = (*self.ids[-longest:], *extra)
        held = len(tail)
        length = len(self.ids) + len(extra)
        offset = length - held
        inside = [
            end for end in range(held - len(extra) + 1, held) if tail[end - 1] == tail[held - 1]
        ]
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

    def draft(self, extra: tuple[int, ...], max_draft_tokens: int) -> Draft:
        """What would be proposed for text + `extra`."""
        matches = self.matches(extra)
        if not matches:
            return NO_DRAFT
        n, start = matches[-1]
        ids = self.ids[start : start + max_draft_tokens]
        if len(ids) < max_draft_tokens:
            beyond = max(0, start - len(self.ids))
            ids.extend(extra[beyond : beyond + max_draft_tokens - len(ids)])
        return Draft(tuple(ids), n)


class NgramProposer(Proposer):
    """vLLM's `ngram`; windows of `prompt_lookup_min` to `prompt_lookup_max` tokens."""

    def __init__(self, prompt_lookup_min: int = 5, prompt_lookup_max: int = 5) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min={prompt_lookup_min}, prompt_lookup_max={prompt_lookup_max}: "
                "1 <= min <= max is required"
            )
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

    def lookahead(self, sequence_id: int, draft: Draft, max_draft_tokens: int) -> Sequence[Outcome]:
        """All accepted and the copy goes on; then rejections where a shorter window disagrees."""
        text = self._texts[sequence_id]
        if not draft.ids:
            return ()
        outcomes = []
        guess = text.token_at(text.match_end + len(draft.ids), draft.ids)
        if guess is not None:
            outcomes.append((*draft.ids, guess))
        if len(self._windows) > 1:
            for kept in range(min(len(draft.ids), _LOOKAHEAD_POSITIONS)):
                accepted = draft.ids[:kept]
                other = self._second_opinion(text, accepted, draft.ids[kept])
                if other is not None and len(outcomes) < MAX_OUTCOMES:
                    outcomes.append((*accepted, other))
        drafts = [Outcome(ids, text.draft(ids, max_draft_tokens)) for ids in outcomes]
        return [outcome for outcome in drafts if outcome.draft.ids]

    def close(self, sequence_id: int, finished: bool) -> None:
        del self._texts[sequence_id]

    def _second_opinion(
        self, text: _IndexedText, accepted: tuple[int, ...], refused: int
    ) -> int | None:
        for _, start in reversed(text.matches(accepted)):
            token = text.token_at(start, accepted)
            if token != refused:
                return token
        return None
