"""What each single token stands for: bytes, text, or half a character.

Knows tokenizers and their decoders; does not know sequences: how pieces become text is
detokenizer.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTable(dict[int, T], Generic[T]):
    """What each id stands for, worked out when it is first seen."""

    def __init__(self, make: Callable[[int], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token_id: int) -> T:
        value = self[token_id] = self._make(token_id)
        return value


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> TokenTable[bytes]:
    """UTF-8 of each id by itself, special tokens included; empty for ids without text.

    A token that is part of a character has that part's bytes, so that the bytes of a text's tokens
    join to its own. Only where a decoder looks at a token's neighbours may a space at its edge be
    missing.
    """
    backend, decoder = decoder_of(tokenizer)
    if decoder is not None and decoder["type"] == "ByteLevel":
        return TokenTable(byte_level_piece(backend))
    recipe = byte_fallback_recipe(decoder)
    if recipe is not None:
        piece = byte_fallback_piece(backend, recipe[0])
        return TokenTable(lambda i: _as_bytes(piece(i)))
    return TokenTable(
        lambda i: str(tokenizer.decode([i], clean_up_tokenization_spaces=False)).encode("utf-8")
    )


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, Any]:
    """The tokenizers library's object and its decoder as JSON; None for what there is not."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend, json.loads(backend.to_str())["decoder"] if backend is not None else None


def is_special(backend: Any) -> Callable[[int], bool]:
    """Whether an id is a special token's."""
    specials = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    return lambda token_id: _shown(backend, token_id) in specials


def byte_level_piece(backend: Any) -> Callable[[int], bytes]:
    """Bytes of an id of byte-level BPE."""
    alphabet = {character: byte for byte, character in _byte_characters().items()}

    def piece(token_id: int) -> bytes:
        # As the decoder does: a token outside the alphabet (some added tokens) is plain text.
        text = _shown(backend, token_id)
        try:
            return bytes([alphabet[character] for character in text])
        except KeyError:
            return text.encode("utf-8")

    return piece


def byte_fallback_piece(
    backend: Any, replacements: list[tuple[str, str]]
) -> Callable[[int], str | int | None]:
    """Text of an id of a byte-fallback vocabulary, or its byte; None for an id without either."""

    def piece(token_id: int) -> str | int | None:
        text = _shown(backend, token_id)
        if not text:
            return None
        for old, new in replacements:
            text = text.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(text)
        return int(byte.group(1), 16) if byte else text

    return piece


def byte_fallback_recipe(decoder: Any) -> tuple[list[tuple[str, str]], int] | None:
    """Replacements and leading strip of a `Replace* ByteFallback Fuse Strip?` decoder, or None."""
    if decoder is None or decoder["type"] != "Sequence":
        return None
    steps = list(decoder["decoders"])
    replacements: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        step = steps.pop(0)
        replacements.append((step["pattern"]["String"], step["content"]))
    if [step["type"] for step in steps[:2]] != ["ByteFallback", "Fuse"]:
        return None
    steps = steps[2:]
    if not steps:
        return replacements, 0
    strip = steps.pop(0)
    if steps or strip["type"] != "Strip" or strip["content"] != " " or strip["stop"] != 0:
        return None
    return replacements, int(strip["start"])


def _shown(backend: Any, token_id: int) -> str:
    """Token text; empty for ids without one, as in padded vocabularies."""
    return backend.id_to_token(token_id) or ""


def _as_bytes(piece: str | int | None) -> bytes:
    if piece is None:
        return b""
    return piece.encode("utf-8") if isinstance(piece, str) else bytes([piece])


def _byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(256 + rank) for rank, byte in enumerate(others)})
    return table
