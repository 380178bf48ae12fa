"""Bad words as token ids. Knows how a tokenizer spells a word; knows no sequences."""

from __future__ import annotations

from collections.abc import Iterable

from verifier_service.text import Text


def bad_word_ids(text: Text, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The token sequences to forbid: each word at a text's start and behind a space.

    Most tokenizers spell a word otherwise behind a space, so both are tokenised, as by vLLM. Other
    spellings of the same letters (split at other places) are not found.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        for spelling in (bare, f" {bare}") if bare else (word,):
            ids = tuple(text.encode(spelling, add_special_tokens=False))
            if ids:
                found[ids] = None
    return tuple(found)
