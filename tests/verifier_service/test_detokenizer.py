from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.verifier_service.tokenizers_for_tests import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    word_tokenizer,
)
from verifier_service import detokenizer as d

KINDS: list[tuple[Callable[[], PreTrainedTokenizerFast], type]] = [
    (byte_level_tokenizer, d.ByteLevelDetokenizer),
    (byte_fallback_tokenizer, d.ByteFallbackDetokenizer),
    (word_tokenizer, d.WindowDetokenizer),
]


def whole(tokenizer: PreTrainedTokenizerFast, ids: list[int], skip: bool) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(("make", "kind"), KINDS)
def test_the_decoder_chooses_the_detokenizer(
    make: Callable[[], PreTrainedTokenizerFast], kind: type
) -> None:
    assert isinstance(d.detokenizer_factory(make())(skip_special_tokens=True), kind)


@pytest.mark.parametrize(("make", "kind"), KINDS)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_pieces_join_to_what_decode_says(
    make: Callable[[], PreTrainedTokenizerFast], kind: type, data: st.DataObject, skip: bool
) -> None:
    tokenizer = make()
    # Two ids beyond the vocabulary: models pad theirs.
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 1), max_size=40))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6).map(sorted))
    detokenizer = d.detokenizer_factory(tokenizer)(skip_special_tokens=skip)
    edges = [0, *cuts, len(ids)]
    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(edges)]
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == whole(tokenizer, ids, skip)


@given(text=st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    tokenizer = byte_level_tokenizer()
    text = text.replace("\ufffd", "")
    detokenizer = d.detokenizer_factory(tokenizer)(skip_special_tokens=False)
    shown = ""
    for token_id in tokenizer.encode(text):
        shown += detokenizer.push([token_id])
        assert "\ufffd" not in shown
        assert text.startswith(shown)
    assert shown + detokenizer.finish() == text


def test_a_character_appears_with_its_last_byte() -> None:
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("🙂!")
    detokenizer = d.detokenizer_factory(tokenizer)(skip_special_tokens=True)
    shown = [detokenizer.push([i]) for i in ids]
    assert "".join(shown) == "🙂!"
    assert shown[-1] in ("!", "🙂!")
    assert detokenizer.finish() == ""


def test_an_unfinished_character_is_replaced_at_the_end_only() -> None:
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["ð", "Ł"])
    assert isinstance(ids, list)
    detokenizer = d.detokenizer_factory(tokenizer)(skip_special_tokens=True)
    assert detokenizer.push(ids) == ""
    assert detokenizer.finish() == whole(tokenizer, ids, True) == "\ufffd"


def test_special_tokens_are_shown_when_asked() -> None:
    tokenizer = byte_level_tokenizer()
    ids = [*tokenizer.encode("cat"), tokenizer.eos_token_id]
    factory = d.detokenizer_factory(tokenizer)
    assert factory(skip_special_tokens=True).push(ids) == "cat"
    assert factory(skip_special_tokens=False).push(ids) == "cat<|end|>"


def test_a_run_of_byte_tokens_is_held_until_it_ends() -> None:
    tokenizer = byte_fallback_tokenizer()
    run = tokenizer.convert_tokens_to_ids(["<0xE2>", "<0x82>", "<0xAC>"])
    word = tokenizer.convert_tokens_to_ids("▁cat")
    assert isinstance(run, list) and isinstance(word, int)
    detokenizer = d.detokenizer_factory(tokenizer)(skip_special_tokens=True)
    assert detokenizer.push(run) == ""
    assert detokenizer.push([word]) == "€ cat"


def test_bytes_are_joined_across_a_skipped_special_token() -> None:
    tokenizer = byte_level_tokenizer()
    first, second = (tokenizer.convert_tokens_to_ids(t) for t in ("Ã", "¼"))
    ids = [first, tokenizer.eos_token_id, second]
    detokenizer = d.detokenizer_factory(tokenizer)(skip_special_tokens=True)
    assert [detokenizer.push([i]) for i in ids] == ["", "", "ü"]


def test_a_long_output_reads_each_token_once() -> None:
    tokenizer = word_tokenizer()
    lengths: list[int] = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return whole(tokenizer, ids, True)

    detokenizer = d.WindowDetokenizer(decode)
    ids = [2, 1, 1, 1, 1, 1, 1, 3] * 200
    text = "".join(detokenizer.push([i]) for i in ids) + detokenizer.finish()
    assert text == whole(tokenizer, ids, True)
    assert max(lengths) < 12
