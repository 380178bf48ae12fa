"""The bytes that ids add to an answer, as grammars see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

from tests.verifier_service.tokenizers_for_tests import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    word_tokenizer,
)
from verifier_service.detokenizer import detokenizer_factory
from verifier_service.grammar.compiling import compile_structure, new_compiler
from verifier_service.grammar.matcher import GrammarConstraint
from verifier_service.grammar.structure import Kind, Structure
from verifier_service.grammar.vocabulary import Vocabulary, special_ids

TOKENIZERS = [byte_level_tokenizer, byte_fallback_tokenizer, word_tokenizer]
Make = Callable[[], PreTrainedTokenizerFast]


def vocabulary(tokenizer: PreTrainedTokenizerFast, extra: int = 0) -> Vocabulary:
    stops = special_ids(tokenizer)
    return Vocabulary.of(tokenizer, len(tokenizer) + extra, stops)


@pytest.mark.parametrize("make", TOKENIZERS)
def test_pieces_join_to_what_a_client_reads(make: Make) -> None:
    tokenizer = make()
    pieces = vocabulary(tokenizer).pieces
    ids = tokenizer.encode("the cats the cat", add_special_tokens=False)
    detokenizer = detokenizer_factory(tokenizer)(skip_special_tokens=True)
    text = detokenizer.push(ids) + detokenizer.finish()
    # The very first space is the decoder's to drop.
    assert b"".join(pieces[i] for i in ids).decode().removeprefix(" ") == text


@pytest.mark.parametrize("make", TOKENIZERS)
def test_special_tokens_are_no_text(make: Make) -> None:
    tokenizer = make()
    assert special_ids(tokenizer)
    assert all(vocabulary(tokenizer).pieces[i] == b"" for i in special_ids(tokenizer))


def test_added_tokens_that_are_not_special_have_their_text() -> None:
    tokenizer = byte_level_tokenizer()
    (token_id,) = tokenizer.encode("<tool call>")
    assert vocabulary(tokenizer).pieces[token_id] == b"<tool call>"


def test_a_special_token_is_never_part_of_an_answer() -> None:
    tokenizer = byte_level_tokenizer()
    (start,) = tokenizer.encode("<|start|>")
    (end,) = tokenizer.encode("<|end|>")
    made = Vocabulary.of(tokenizer, len(tokenizer), [end])
    grammar = compile_structure(new_compiler(made), Structure(Kind.REGEX, ".*"))
    assert GrammarConstraint(grammar).admitted([start]) == 0
    assert GrammarConstraint(grammar).admitted([end]) == 1


@pytest.mark.parametrize("extra", [1, 29, 100])
def test_a_padded_vocabulary_is_as_wide_as_the_models_logits(extra: int) -> None:
    tokenizer = byte_level_tokenizer()
    made = vocabulary(tokenizer, extra)
    assert made.pieces[-extra:] == (b"",) * extra
    assert made.info().vocab_size == len(tokenizer) + extra
    grammar = compile_structure(new_compiler(made), Structure(Kind.REGEX, ".*"))
    row = GrammarConstraint(grammar).masks([])[0]
    assert len(row) == -(-(len(tokenizer) + extra) // 32)
    for padded in range(len(tokenizer), len(tokenizer) + extra):
        assert not int(row[padded // 32]) >> (padded % 32) & 1


def test_a_model_with_fewer_logits_than_tokens() -> None:
    tokenizer = byte_level_tokenizer()
    made = Vocabulary.of(tokenizer, 200, [1, 250])
    assert len(made.pieces) == 200 and made.stop_ids == (1,)
