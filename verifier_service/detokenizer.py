"""Turns a growing sequence of token ids into text, one piece at a time.

Knows tokenizers and their decoders; knows no requests, stop strings or transports.

The contract of every `Detokenizer`: the pieces it returned, joined, are what the tokenizer's own
`decode` makes of all the ids; a piece is never taken back, so no character is shown before its
last byte is there and U+FFFD appears only where the bytes can no longer become a character. Cost
is O(1) amortised per token: nothing is decoded twice, except by `WindowDetokenizer`, which reads
a bounded window again.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from verifier_service.token_pieces import (
    TokenTable,
    byte_fallback_piece,
    byte_fallback_recipe,
    byte_level_piece,
    decoder_of,
    is_special,
)

# The longest UTF-8 sequence has four bytes: a replacement character that this many later tokens
# did not complete will stay.
_WINDOW_PATIENCE = 4


class Detokenizer(Protocol):
    """The text of one sequence's output, incrementally."""

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that became certain with these further ids; may be empty."""

    def finish(self) -> str:
        """What was still held back; no id may follow."""


class DetokenizerFactory(Protocol):
    """Makes detokenizers that share one tokenizer's tables."""

    def __call__(self, skip_special_tokens: bool) -> Detokenizer: ...


def detokenizer_factory(tokenizer: PreTrainedTokenizerBase) -> DetokenizerFactory:
    """The exact detokenizer for this tokenizer's decoder.

    Byte-level BPE and byte-fallback (SentencePiece-like) decoders have exact ones; others, whose
    text of a token may depend on its neighbours, are read through a window.
    """
    backend, decoder = decoder_of(tokenizer)
    if decoder is not None and decoder["type"] == "ByteLevel":
        return _byte_level_factory(backend)
    recipe = byte_fallback_recipe(decoder)
    if recipe is not None:
        return _byte_fallback_factory(backend, *recipe)
    return lambda skip_special_tokens: WindowDetokenizer(
        lambda ids: str(
            tokenizer.decode(
                ids,
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )
    )


class ByteLevelDetokenizer:
    """For byte-level BPE: ids are bytes, and bytes are decoded as UTF-8 with replacement."""

    __slots__ = ("_bytes", "_rest")

    def __init__(self, token_bytes: TokenTable[bytes]) -> None:
        self._bytes = token_bytes
        # The beginning of a character whose other bytes are still to come.
        self._rest = b""

    def push(self, token_ids: Iterable[int]) -> str:
        table = self._bytes
        data = self._rest + b"".join([table[i] for i in token_ids])
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._rest = data[used:]
        return text

    def finish(self) -> str:
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", "replace")


class ByteFallbackDetokenizer:
    """For vocabularies with `<0xNN>` tokens: a run of them is text only as a whole.

    `decode` replaces *every* byte of a run that is not valid UTF-8, so a run is held back until
    another token ends it. At most `strip` spaces are dropped from the text's beginning.
    """

    __slots__ = ("_pieces", "_run", "_strip")

    def __init__(self, pieces: TokenTable[str | int | None], strip: int) -> None:
        self._pieces = pieces
        self._strip = strip
        self._run = bytearray()

    def push(self, token_ids: Iterable[int]) -> str:
        out: list[str] = []
        for token_id in token_ids:
            piece = self._pieces[token_id]
            if piece is None:
                continue
            if isinstance(piece, int):
                self._run.append(piece)
                continue
            if self._run:
                out.append(self._end_run())
            out.append(piece)
        return self._stripped("".join(out))

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(" "):
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class WindowDetokenizer:
    """For any other decoder: reads the last few ids again and takes what the text grew by.

    Exact where the text of a token depends on the token before it at most, and a decoder's
    replacement character is gone four tokens later if it ever goes.
    """

    __slots__ = ("_context", "_decode", "_pending")

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        out: list[str] = []
        for token_id in token_ids:
            self._pending.append(token_id)
            text = self._grown()
            waiting = text.endswith("\ufffd") and len(self._pending) < _WINDOW_PATIENCE
            if text and not waiting:
                out.append(text)
                self._context = self._pending
                self._pending = []
            elif not text and len(self._pending) >= _WINDOW_PATIENCE:
                # Ids without text (skipped special tokens) must not make the window grow.
                self._pending = []
        return "".join(out)

    def finish(self) -> str:
        text = self._grown()
        self._pending = []
        return text

    def _grown(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(before) :]


def _byte_level_factory(backend: Any) -> DetokenizerFactory:
    piece, special = byte_level_piece(backend), is_special(backend)
    full = TokenTable(piece)
    without_special = TokenTable(lambda i: b"" if special(i) else piece(i))

    def make(skip_special_tokens: bool) -> Detokenizer:
        return ByteLevelDetokenizer(without_special if skip_special_tokens else full)

    return make


def _byte_fallback_factory(
    backend: Any, replacements: list[tuple[str, str]], strip: int
) -> DetokenizerFactory:
    piece, special = byte_fallback_piece(backend, replacements), is_special(backend)
    full = TokenTable(piece)
    without_special = TokenTable(lambda i: None if special(i) else piece(i))

    def make(skip_special_tokens: bool) -> Detokenizer:
        return ByteFallbackDetokenizer(without_special if skip_special_tokens else full, strip)

    return make
