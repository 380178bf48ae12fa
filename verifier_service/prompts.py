"""A request's prompt as token ids, whichever form it has.

Knows the three forms, what is refused before any time is spent on it, and where the tokenizer
may run; the text itself is text.py's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from speculation.v1 import verifier_pb2

from verifier_service.request_error import RequestError
from verifier_service.text import Text
from verifier_service.truncation import truncation_of


class OnTokenizerThread(Protocol):
    """Runs a call on the one thread that may use the tokenizer."""

    def __call__(self, call: Callable[[], list[int]], /) -> Awaitable[list[int]]: ...


class Prompts:
    """Reads prompts for one model.

    `trust_request_chat_template` lets a request bring the Jinja template its messages go through.
    """

    def __init__(
        self,
        text: Text,
        max_model_len: int,
        on_tokenizer: OnTokenizerThread,
        *,
        trust_request_chat_template: bool,
    ) -> None:
        self._text = text
        self._max_model_len = max_model_len
        self._on_tokenizer = on_tokenizer
        self._trust_template = trust_request_chat_template

    async def ids(
        self,
        request: verifier_pb2.GenerateRequest | verifier_pb2.TokenizeRequest,
        reserved_tokens: int,
    ) -> list[int]:
        """All ids, or those to keep; a truncation to what fits leaves `reserved_tokens` free.

        Raises RequestError naming the field at fault.
        """
        text, room = self._text, self._max_model_len
        truncation = truncation_of(request, room, reserved_tokens)
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise RequestError("prompt is missing: text, ids or messages", field="prompt")
        if kind == "token_ids":
            ids = list(request.token_ids.ids)
            return truncation.ids(ids) if truncation else ids
        special = (
            request.add_special_tokens if request.HasField("add_special_tokens") else kind == "text"
        )
        if kind == "text":
            if truncation is None:
                text.check_size(request.text, "prompt", room)
            return await self._on_tokenizer(
                partial(
                    text.encode, request.text, add_special_tokens=special, truncation=truncation
                )
            )
        if request.chat.chat_template and not self._trust_template:
            raise RequestError(
                "chat_template is not allowed: this verifier uses only the model's own template; "
                "started with --trust-request-chat-template it takes a request's",
                field="chat_template",
            )
        return await self._on_tokenizer(
            partial(
                text.encode_chat,
                request.chat,
                add_special_tokens=special,
                max_tokens=room,
                truncation=truncation,
            )
        )
