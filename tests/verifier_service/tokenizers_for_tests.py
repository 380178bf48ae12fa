"""Small real tokenizers, built in memory: byte-level BPE, byte-fallback and word-level."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('role ' + m.role + ' is unknown') }}{% endif %}"
    "{{ '<|start|>' + m.role + '\\n' + m.content + '<|end|>' }}{% endfor %}"
    "{% if tools %}{{ 'TOOLS' ~ tools | length }}{% endif %}"
    "{% if mood is defined %}{{ mood }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|start|>", "<|end|>")
CORPUS = ["the cat sat on the mat", "a dog and a cat", "STOP stopping", "über naïve 東京"]


@cache
def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """All 256 bytes, a few merges, two special tokens and two ordinary added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # A space and a letter beyond Latin-1 are outside the byte alphabet.
    tokenizer.add_tokens([AddedToken("<tool call>"), AddedToken("東")])
    return _wrap(tokenizer, eos_token="<|end|>", chat_template=CHAT_TEMPLATE)


@cache
def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """As converted SentencePiece models are: `▁` for spaces, `<0xNN>` for other bytes."""
    words = ["<unk>", "<s>", "▁the", "▁cat", "s", "▁", "é", "▁▁"]
    vocabulary = {word: i for i, word in enumerate(words)}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>"])
    return _wrap(tokenizer, bos_token="<s>")


@cache
def word_tokenizer() -> PreTrainedTokenizerFast:
    """A decoder of the third kind: the first token's space is dropped, later ones are kept."""
    words = ["<unk>", "<s>", "▁the", "▁cat", "s", "▁sat"]
    tokenizer = Tokenizer(
        models.WordLevel(vocab={w: i for i, w in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    return _wrap(tokenizer, bos_token="<s>")


def _wrap(tokenizer: Tokenizer, **options: str) -> PreTrainedTokenizerFast:
    # Untyped in some releases of transformers, typed in others.
    make: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = make(tokenizer_object=tokenizer, **options)
    return wrapped
