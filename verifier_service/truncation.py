"""How much of a prompt is kept where a request asks for less than all of it.

Knows token counts and which end is kept; knows no tokenizer. Special tokens that the tokenizer
adds count, and stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculation.v1 import verifier_pb2

from verifier_service.request_error import RequestError

_FIELD = "truncate_prompt_tokens"


@dataclass(frozen=True, slots=True)
class Truncation:
    """Keep at most `max_tokens` tokens: a prompt's last ones, or its first with `keep_first`."""

    max_tokens: int
    keep_first: bool = False

    def ids(self, token_ids: Sequence[int]) -> list[int]:
        """Those of a prompt that is ids already."""
        return list(token_ids[self._slice(self.max_tokens)])

    def text(self, text: str, characters_per_token: int) -> str:
        """A part of `text` that has all the tokens to keep, so that the rest costs no time."""
        return text[self._slice(self.max_tokens * characters_per_token)]

    def _slice(self, count: int) -> slice:
        return slice(count) if self.keep_first else slice(-count, None)


def truncation_of(
    request: verifier_pb2.GenerateRequest | verifier_pb2.TokenizeRequest,
    max_model_len: int,
    reserved_tokens: int,
) -> Truncation | None:
    """What `request` asks for, None for all; -1 leaves `reserved_tokens` of the context free.

    Raises RequestError naming the field, its value and what is allowed.
    """
    if not request.HasField("truncate_prompt_tokens"):
        return None
    asked = request.truncate_prompt_tokens
    if asked == -1:
        # Where not even one token fits, the check of the whole request says so.
        asked = max(max_model_len - max(reserved_tokens, 1), 1)
    elif not 1 <= asked <= max_model_len:
        raise RequestError(
            f"{_FIELD} {asked} is not allowed: it must be from 1 to {max_model_len}, or -1 for as "
            "many tokens as fit",
            field=_FIELD,
        )
    return Truncation(asked, request.truncate_right)
