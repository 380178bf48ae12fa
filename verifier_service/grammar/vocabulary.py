"""The vocabulary as grammars see it: the bytes that each token id adds to an answer's text.

Knows tokenizers and the grammar library's view of them; does not know grammars. The bytes are the
detokenizer's own, so that what a grammar admits is what a client reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase
from xgrammar import TokenizerInfo, VocabType

from verifier_service.token_pieces import byte_fallback_recipe, decoder_of, token_bytes


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`pieces[i]` are the bytes of id i, empty where it has none that an answer could contain.

    There is one for each of the model's logits, also behind the tokenizer's last id (padded
    vocabularies). `stop_ids` end an answer.
    """

    pieces: tuple[bytes, ...]
    stop_ids: tuple[int, ...]

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, vocab_size: int, stop_ids: Collection[int]
    ) -> Vocabulary:
        """The vocabulary of a model with `vocab_size` logits.

        Special tokens have no bytes here: they are no text of an answer, and a client does not see
        them.
        """
        piece = _piece(tokenizer)
        special = special_ids(tokenizer)
        size = max(tokenizer.get_vocab().values()) + 1
        pieces = [
            b"" if i >= size or i in special or i in stop_ids else piece(i)
            for i in range(vocab_size)
        ]
        return cls(tuple(pieces), tuple(sorted(i for i in stop_ids if 0 <= i < vocab_size)))

    def info(self) -> TokenizerInfo:
        """The same for xgrammar."""
        return TokenizerInfo(
            list(self.pieces),
            VocabType.RAW,
            vocab_size=len(self.pieces),
            stop_token_ids=list(self.stop_ids),
        )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of special tokens: those the tokenizer names, and added ones that are marked so."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {token_id for token_id, token in added.items() if token.special}
    return frozenset(marked.union(tokenizer.all_special_ids))


def _piece(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], bytes]:
    _, decoder = decoder_of(tokenizer)
    byte_level = decoder is not None and decoder["type"] == "ByteLevel"
    if byte_level or byte_fallback_recipe(decoder) is not None:
        table = token_bytes(tokenizer)
        return lambda token_id: table[token_id]
    # Other decoders may drop a first token's space: what an id adds is seen behind another.
    special = special_ids(tokenizer)
    anchor = min(set(tokenizer.get_vocab().values()) - special)

    def decoded(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    before = len(decoded([anchor]))
    return lambda token_id: decoded([anchor, token_id])[before:].encode("utf-8")
