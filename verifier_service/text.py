"""The target's text side: prompt to ids, ids to text, the vocabulary's fingerprint.

Knows the tokenizer; knows no weights, requests or transports. Methods that tokenize may take
milliseconds on long prompts and must not run on two threads at once (tokenizers change their
truncation state while they encode): the server gives them one worker thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from speculation.v1 import verifier_pb2
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from outrider.errors import InputError
from outrider.vocabulary import fingerprint
from verifier_service.chat import TOLD_BY_INSTRUCTION, render_chat, tools_in_prompt
from verifier_service.detokenizer import Detokenizer, detokenizer_factory
from verifier_service.request_error import CONTEXT_LENGTH_EXCEEDED, RequestError, shorten
from verifier_service.token_pieces import token_bytes
from verifier_service.truncation import Truncation

logger = logging.getLogger(__name__)

# A normalizer may shorten text (Hangul composes three characters into one), so a prompt is called
# too long by its characters alone only where it is too long even then.
_NORMALIZER_SLACK = 4


class Text:
    """One tokenizer and what the verifier's edge asks of it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = self._tokenizer = tokenizer
        self._make_detokenizer = detokenizer_factory(tokenizer)
        self._token_bytes = token_bytes(tokenizer)
        vocabulary = tokenizer.get_vocab()
        self.fingerprint: str = fingerprint(vocabulary)
        self.tools_in_prompt: str = tools_in_prompt(tokenizer)
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.longest_token: int = max(len(token) for token in vocabulary)

    @classmethod
    def load(cls, folder: Path) -> Text:
        """The tokenizer of a model folder. Raises InputError where it cannot be read."""
        try:
            # verbose: the tokenizer's own limit is a guess; the verifier checks the true one.
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, verbose=False)
        except Exception as error:
            reason = shorten(" ".join(str(error).split()) or type(error).__name__, 300)
            raise InputError(f"model: no tokenizer can be read from {folder}: {reason}") from error
        text = cls(tokenizer)
        if text.tools_in_prompt == TOLD_BY_INSTRUCTION:
            logger.info(
                "the chat template takes no tools: requests with tools get a system instruction, "
                "and calls and results in their messages become text"
            )
        return text

    def encode(
        self, text: str, *, add_special_tokens: bool, truncation: Truncation | None = None
    ) -> list[int]:
        """Ids of `text`, or of the part to keep; special tokens written in it are recognised.

        Not thread-safe where it truncates: the tokenizer is told which end to keep.
        """
        if truncation is None:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        self._tokenizer.truncation_side = "right" if truncation.keep_first else "left"
        ids = self._tokenizer.encode(
            truncation.text(text, self.longest_token * _NORMALIZER_SLACK),
            add_special_tokens=add_special_tokens,
            truncation=True,
            max_length=truncation.max_tokens,
        )
        return truncation.ids(ids)

    def encode_chat(
        self,
        chat: verifier_pb2.ChatMessages,
        *,
        add_special_tokens: bool,
        max_tokens: int,
        truncation: Truncation | None = None,
    ) -> list[int]:
        """Ids of a rendered chat. Raises RequestError; see `check_size` for `max_tokens`."""
        prompt = render_chat(self._tokenizer, chat)
        if truncation is None:
            self.check_size(prompt, "messages", max_tokens)
        return self.encode(prompt, add_special_tokens=add_special_tokens, truncation=truncation)

    def check_size(self, text: str, field: str, max_tokens: int) -> None:
        """Refuse what cannot fit `max_tokens`, before any time is spent on tokenizing it.

        Raises RequestError naming `field`.
        """
        allowed = max_tokens * self.longest_token * _NORMALIZER_SLACK
        if len(text) > allowed:
            raise RequestError(
                f"{field} has {len(text)} characters: more than the maximum context length of "
                f"{max_tokens} tokens can hold",
                field=field,
                code=CONTEXT_LENGTH_EXCEEDED,
            )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of the ids, as a stream of deltas would have it."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.finish()

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each id (`Ġthe`); empty for ids without one."""
        tokens = self._tokenizer.convert_ids_to_tokens(list(token_ids))
        return [token or "" for token in tokens]

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of one id alone; part of a character for an id that is part of one."""
        return self._token_bytes[token_id]

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A fresh incremental detokenizer for one answer."""
        return self._make_detokenizer(skip_special_tokens=skip_special_tokens)
