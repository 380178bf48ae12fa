"""Response objects of the two generation endpoints, whole and streamed.

Knows OpenAI's field names and vLLM's additions; does not know how the tokens were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from speculation.v1 import verifier_pb2 as pb

from gateway.generation import Choice
from gateway.logprobs import LogprobOptions, chat_logprobs, completion_logprobs, prompt_logprobs

_NO_LOGPROBS: Final = LogprobOptions()


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every object of one response carries; `created` is Unix time in seconds."""

    request_id: str
    created: int
    model: str
    fingerprint: str

    def object(self, prefix: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


class Shape(Protocol):
    """One endpoint's objects."""

    @property
    def with_ids(self) -> bool:
        """Whether objects carry token ids."""

    def whole(self, envelope: Envelope, choices: Sequence[Choice]) -> dict[str, Any]:
        """The non-streaming response, without usage and metrics."""

    def first(self, envelope: Envelope, choice: Choice) -> dict[str, Any] | None:
        """The chunk that opens a choice, if it has one."""

    def delta(self, envelope: Envelope, choice: Choice, delta: pb.Delta) -> dict[str, Any] | None:
        """A chunk of what is new, if it is to be shown."""

    def last(self, envelope: Envelope, choice: Choice) -> list[dict[str, Any]]:
        """The chunks that end a choice."""

    def empty(self, envelope: Envelope) -> dict[str, Any]:
        """A chunk without choices, for usage."""


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """`/v1/completions`."""

    with_ids: bool = False
    logprobs: LogprobOptions = _NO_LOGPROBS

    def whole(self, envelope: Envelope, choices: Sequence[Choice]) -> dict[str, Any]:
        return self._object(
            envelope,
            [
                {
                    **self._choice(c, c.call.echo + "".join(c.texts)),
                    "logprobs": self._logprobs(c, c.logprobs, begins=True),
                    "prompt_logprobs": prompt_logprobs(c.started, self.logprobs),
                    "token_ids": list(c.token_ids) if self.with_ids else None,
                    "prompt_token_ids": _prompt_ids(c) if self.with_ids else None,
                }
                for c in choices
            ],
        )

    def first(self, envelope: Envelope, choice: Choice) -> dict[str, Any] | None:
        if not choice.call.echo and not self.with_ids:
            return None
        ids = {"prompt_token_ids": _prompt_ids(choice), "token_ids": []} if self.with_ids else {}
        logprobs = self._logprobs(choice, (), begins=True) if self.logprobs.echoed else None
        return self._object(
            envelope,
            [{**self._choice(choice, choice.call.echo), "logprobs": logprobs, **ids}],
        )

    def delta(self, envelope: Envelope, choice: Choice, delta: pb.Delta) -> dict[str, Any] | None:
        if not delta.text and not self.beside_text(delta):
            return None
        ids = {"token_ids": list(delta.token_ids)} if self.with_ids else {}
        logprobs = self._logprobs(choice, delta.logprobs) if delta.logprobs else None
        return self._object(
            envelope, [{**self._choice(choice, delta.text), "logprobs": logprobs, **ids}]
        )

    def last(self, envelope: Envelope, choice: Choice) -> list[dict[str, Any]]:
        return [self._object(envelope, [self._choice(choice, "")])]

    def beside_text(self, delta: pb.Delta) -> bool:
        """Whether there is more to show of `delta` than its text."""
        return bool(delta.logprobs) or (self.with_ids and bool(delta.token_ids))

    def empty(self, envelope: Envelope) -> dict[str, Any]:
        return self._object(envelope, [])

    def _object(self, envelope: Envelope, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return envelope.object("cmpl", "text_completion", choices)

    def _logprobs(
        self, choice: Choice, entries: Sequence[pb.TokenLogprob], *, begins: bool = False
    ) -> dict[str, Any] | None:
        if self.logprobs.output is None:
            return None
        prompt = choice.started if begins and self.logprobs.echoed else None
        return completion_logprobs(entries, self.logprobs, choice.text_offset, prompt)

    def _choice(self, choice: Choice, text: str) -> dict[str, Any]:
        return {
            "index": choice.call.index,
            "text": text,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }


@dataclass(frozen=True, slots=True)
class ChatShape:
    """`/v1/chat/completions`."""

    with_ids: bool = False
    logprobs: LogprobOptions = _NO_LOGPROBS

    def whole(self, envelope: Envelope, choices: Sequence[Choice]) -> dict[str, Any]:
        answer = envelope.object(
            "chatcmpl",
            "chat.completion",
            [
                {
                    "index": c.call.index,
                    "message": {
                        "role": "assistant",
                        "content": c.call.echo + "".join(c.texts),
                        "refusal": None,
                        "annotations": None,
                        "audio": None,
                        "function_call": None,
                        "tool_calls": [],
                    },
                    "logprobs": self._logprobs(c.logprobs),
                    "finish_reason": c.finish_reason,
                    "stop_reason": c.stop_reason,
                    "token_ids": list(c.token_ids) if self.with_ids else None,
                }
                for c in choices
            ],
        )
        answer["prompt_logprobs"] = prompt_logprobs(choices[0].started, self.logprobs)
        answer["prompt_token_ids"] = _prompt_ids(choices[0]) if self.with_ids else None
        return answer

    def first(self, envelope: Envelope, choice: Choice) -> dict[str, Any] | None:
        chunk = self.chunk(envelope, choice, {"role": "assistant", "content": choice.call.echo})
        if self.with_ids:
            chunk["prompt_token_ids"] = _prompt_ids(choice)
        return chunk

    def delta(self, envelope: Envelope, choice: Choice, delta: pb.Delta) -> dict[str, Any] | None:
        if not delta.text and not self.beside_text(delta):
            return None
        return self.chunk(envelope, choice, {"content": delta.text}, self.beside(delta))

    def last(self, envelope: Envelope, choice: Choice) -> list[dict[str, Any]]:
        return [self.chunk(envelope, choice, {}, {"stop_reason": choice.stop_reason})]

    def beside_text(self, delta: pb.Delta) -> bool:
        """Whether there is more to show of `delta` than its text."""
        return bool(delta.logprobs) or (self.with_ids and bool(delta.token_ids))

    def beside(self, delta: pb.Delta) -> dict[str, Any]:
        """A chunk's fields beside OpenAI's `delta`: what else is told of these tokens."""
        more: dict[str, Any] = {"token_ids": list(delta.token_ids)} if self.with_ids else {}
        if delta.logprobs:
            more["logprobs"] = self._logprobs(delta.logprobs)
        return more

    def empty(self, envelope: Envelope) -> dict[str, Any]:
        return envelope.object("chatcmpl", "chat.completion.chunk", [])

    def _logprobs(self, entries: Sequence[pb.TokenLogprob]) -> dict[str, Any] | None:
        return None if self.logprobs.output is None else chat_logprobs(entries, self.logprobs)

    def chunk(
        self,
        envelope: Envelope,
        choice: Choice,
        delta: dict[str, Any],
        more: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A chunk of one choice; `more` are fields beside OpenAI's own."""
        body = {
            "index": choice.call.index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            **(more or {}),
        }
        return envelope.object("chatcmpl", "chat.completion.chunk", [body])


def _prompt_ids(choice: Choice) -> list[int] | None:
    ids = choice.call.prompt_token_ids
    return None if ids is None else list(ids)
