"""The bytes of single tokens, which join to the bytes of a text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.verifier_service.tokenizers_for_tests import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    word_tokenizer,
)
from verifier_service.token_pieces import token_bytes


def test_a_token_that_is_part_of_a_character_has_its_bytes() -> None:
    tokenizer = byte_level_tokenizer()
    table = token_bytes(tokenizer)
    pieces = [table[i] for i in tokenizer.encode("🙂")]
    assert len(pieces) == 4
    assert b"".join(pieces) == "🙂".encode()


@pytest.mark.parametrize("make", [byte_level_tokenizer, byte_fallback_tokenizer])
@given(text=st.text("the cats 東é🙂", max_size=30))
@settings(max_examples=100, deadline=None)
def test_bytes_of_tokens_join_to_the_text(
    make: Callable[[], PreTrainedTokenizerFast], text: str
) -> None:
    tokenizer = make()
    table = token_bytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(table[i] for i in ids).decode("utf-8")
    assert joined.replace("<unk>", "") == joined
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    # A decoder may drop the text's first space; a token does not know that it is first.
    assert joined.lstrip(" ") == str(decoded).lstrip(" ")


def test_special_and_added_tokens_have_their_text() -> None:
    tokenizer = byte_level_tokenizer()
    table = token_bytes(tokenizer)
    for text in ("<|end|>", "<tool call>", "東"):
        (token_id,) = tokenizer.encode(text)
        assert table[token_id] == text.encode()


def test_ids_without_text_have_no_bytes() -> None:
    for make in (byte_level_tokenizer, byte_fallback_tokenizer):
        tokenizer = make()
        assert token_bytes(tokenizer)[len(tokenizer) + 1] == b""


def test_other_decoders_are_asked_token_by_token() -> None:
    table = token_bytes(word_tokenizer())
    assert [table[i] for i in range(2, 6)] == [b"the", b"cat", b"s", b"sat"]
