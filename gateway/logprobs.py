"""Log-probabilities as OpenAI's and vLLM's objects show them.

Knows the verifier's messages and the objects' fields; does not know responses around them. A token
is shown as its own text, with U+FFFD for what is no character by itself; `bytes` has what it is.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from speculation.v1 import verifier_pb2 as pb

from gateway.bodies import ChatBody, CompletionBody

# JSON has no infinity: what OpenAI and vLLM show for an impossible token.
_IMPOSSIBLE: Final = -9999.0


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """What an answer shows: how many top tokens at each position of the output and of the prompt.

    None: no log-probabilities; -1: as many top tokens as came. `echoed`: the prompt's stand before
    the output's. `as_ids`: tokens are shown as `token_id:ID` (`return_tokens_as_token_ids`).
    """

    output: int | None = None
    prompt: int | None = None
    echoed: bool = False
    as_ids: bool = False

    @property
    def of_prompt(self) -> int | None:
        """What the verifier must tell about the prompt, for `prompt` and for `echoed`."""
        counts = [n for n in (self.prompt, self.output if self.echoed else None) if n is not None]
        if not counts:
            return None
        return -1 if -1 in counts else max(counts)


def logprob_options(body: CompletionBody | ChatBody) -> LogprobOptions:
    """What a request's fields ask for."""
    if isinstance(body, ChatBody):
        output = (body.top_logprobs or 0) if body.logprobs else None
    else:
        output = body.logprobs
    return LogprobOptions(
        output=output,
        prompt=body.prompt_logprobs,
        echoed=isinstance(body, CompletionBody) and bool(body.echo) and output is not None,
        as_ids=bool(body.return_tokens_as_token_ids),
    )


class TextOffset:
    """Where tokens begin in a text that consists of them, in characters."""

    __slots__ = ("_characters", "_decoder")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def next(self, token_bytes: bytes) -> int:
        """Where the next token begins; part of a character begins where the character does."""
        start = self._characters
        self._characters += len(self._decoder.decode(token_bytes))
        return start


def chat_logprobs(entries: Iterable[pb.TokenLogprob], options: LogprobOptions) -> dict[str, Any]:
    """A chat choice's `logprobs`: exactly the most likely tokens, as OpenAI has it."""
    return {
        "content": [
            {
                **_chat_token(entry, options),
                "top_logprobs": [
                    _chat_token(top, options) for top in _top(entry, options.output or 0)
                ],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def completion_logprobs(
    entries: Iterable[pb.TokenLogprob],
    options: LogprobOptions,
    offset: TextOffset,
    prompt: pb.Started | None = None,
) -> dict[str, Any]:
    """A completion choice's `logprobs`: four lists with an entry for each token.

    The token itself is among its own top tokens, whether it is one of the most likely or not;
    of tokens that look the same, the first counts. `prompt` puts the prompt's tokens first, the
    first of which has no log-probability.
    """
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    if prompt is not None and prompt.prompt_token_ids:
        tokens.append(_shown(prompt.prompt_token_ids[0], prompt.first_token_bytes, options))
        values.append(None)
        tops.append(None)
        offsets.append(offset.next(prompt.first_token_bytes))
        entries = (*prompt.prompt_logprobs, *entries)
    for entry in entries:
        tokens.append(_shown(entry.token_id, entry.token_bytes, options))
        values.append(_finite(entry.logprob))
        offsets.append(offset.next(entry.token_bytes))
        top: dict[str, float] = {}
        for item in _with_own(entry, options.output or 0):
            top.setdefault(_shown(item.token_id, item.token_bytes, options), _finite(item.logprob))
        tops.append(top)
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": tokens,
        "top_logprobs": tops,
    }


def prompt_logprobs(
    started: pb.Started, options: LogprobOptions
) -> list[dict[str, dict[str, Any]] | None] | None:
    """vLLM's `prompt_logprobs`: id -> figures for each prompt token, null for the first."""
    if options.prompt is None:
        return None
    told: list[dict[str, dict[str, Any]] | None] = [None]
    for entry in started.prompt_logprobs:
        own = {str(entry.token_id): _figures(entry, entry.rank)}
        for rank, top in enumerate(_top(entry, options.prompt), start=1):
            own.setdefault(str(top.token_id), _figures(top, rank))
        told.append(own)
    return told


def _top(entry: pb.TokenLogprob, count: int) -> Sequence[pb.TopLogprob]:
    return entry.top if count < 0 else entry.top[:count]


def _with_own(entry: pb.TokenLogprob, count: int) -> Iterator[pb.TokenLogprob | pb.TopLogprob]:
    yield entry
    yield from (top for top in _top(entry, count) if top.token_id != entry.token_id)


def _chat_token(item: pb.TokenLogprob | pb.TopLogprob, options: LogprobOptions) -> dict[str, Any]:
    return {
        "token": _shown(item.token_id, item.token_bytes, options),
        "logprob": _finite(item.logprob),
        "bytes": list(item.token_bytes),
    }


def _figures(item: pb.TokenLogprob | pb.TopLogprob, rank: int) -> dict[str, Any]:
    return {
        "logprob": _finite(item.logprob),
        "rank": rank,
        "decoded_token": item.token_bytes.decode("utf-8", "replace"),
    }


def _shown(token_id: int, token_bytes: bytes, options: LogprobOptions) -> str:
    if options.as_ids:
        return f"token_id:{token_id}"
    return token_bytes.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, _IMPOSSIBLE)
