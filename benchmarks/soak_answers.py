"""What a soak's request was answered with, whole or in pieces, over HTTP or gRPC.

Knows the shapes of both; sends nothing and judges nothing but their form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

_FINISH = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(slots=True)
class Choice:
    """One answer text. `ids` and `prompt_ids` are None where the response told none.

    `logprobs` counts the tokens whose log-probability was told, None for no log-probabilities.
    """

    text: str = ""
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    tool_names: dict[int, str] = field(default_factory=dict)
    tool_arguments: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Answer:
    """`status` is HTTP's (gRPC's codes as the gateway maps them), 0 where there was none.

    `broken` says in words how the answer failed to be one; `left` that the client left first.
    """

    status: int = 0
    param: str = ""
    message: str = ""
    broken: str = ""
    left: bool = False
    seconds: float = 0.0
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Mapping[str, Any] | None = None
    speculation: Mapping[str, Any] | None = None
    # The object of an endpoint that generates nothing.
    whole: Mapping[str, Any] | None = None

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())

    @property
    def tokens(self) -> int:
        """Generated tokens, as far as they were told."""
        return sum(len(choice.ids or ()) for choice in self.choices.values())

    def refuse(self, status: int, error: Mapping[str, Any]) -> None:
        self.status = status
        self.param = str(error.get("param") or "")
        self.message = str(error.get("message") or "")

    def to_json(self) -> dict[str, Any]:
        """For a report of what went wrong."""
        return {
            "status": self.status,
            "param": self.param,
            "message": self.message,
            "broken": self.broken,
            "left": self.left,
            "seconds": round(self.seconds, 3),
            "choices": [
                {
                    "text": choice.text,
                    "ids": choice.ids,
                    "prompt_ids": choice.prompt_ids,
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                    "tool_arguments": list(choice.tool_arguments.values()),
                }
                for choice in self.choices.values()
            ],
        }


def read_whole(answer: Answer, value: Mapping[str, Any]) -> None:
    """A response that is not streamed."""
    answer.whole = value
    answer.usage = value.get("usage")
    answer.speculation = (value.get("metrics") or {}).get("speculative_decoding")
    for part in value.get("choices", ()):
        choice = answer.choice(part["index"])
        message = part.get("message")
        choice.text = part["text"] if message is None else message.get("content") or ""
        _read_calls(choice, (message or {}).get("tool_calls") or ())
        _read_end(choice, part)
        choice.ids = part.get("token_ids")
        choice.prompt_ids = part.get("prompt_token_ids") or value.get("prompt_token_ids")
        choice.logprobs = _count_logprobs(part.get("logprobs"))
        prompt = part.get("prompt_logprobs") or value.get("prompt_logprobs")
        choice.prompt_logprobs = None if prompt is None else len(prompt)


def read_chunk(answer: Answer, chunk: Mapping[str, Any]) -> None:
    """One event of a stream."""
    answer.usage = chunk.get("usage") or answer.usage
    metrics = (chunk.get("metrics") or {}).get("speculative_decoding")
    answer.speculation = metrics or answer.speculation
    for part in chunk.get("choices", ()):
        choice = answer.choice(part["index"])
        delta = part.get("delta")
        choice.text += part["text"] if delta is None else delta.get("content") or ""
        _read_calls(choice, (delta or {}).get("tool_calls") or ())
        _read_end(choice, part)
        if part.get("token_ids") is not None:
            choice.ids = [*(choice.ids or ()), *part["token_ids"]]
        prompt_ids = part.get("prompt_token_ids") or chunk.get("prompt_token_ids")
        choice.prompt_ids = prompt_ids or choice.prompt_ids
        count = _count_logprobs(part.get("logprobs"))
        if count is not None:
            choice.logprobs = (choice.logprobs or 0) + count


def read_message(answer: Answer, message: pb.GenerateResponse) -> None:
    """One message of a gRPC stream."""
    choice = answer.choice(0)
    kind = message.WhichOneof("message")
    if kind == "started":
        started = message.started
        choice.prompt_ids = list(started.prompt_token_ids) or None
        if started.prompt_logprobs:
            # HTTP has an entry for the first token, too.
            choice.prompt_logprobs = len(started.prompt_logprobs) + 1
    elif kind == "delta":
        choice.text += message.delta.text
        choice.ids = [*(choice.ids or ()), *message.delta.token_ids]
        if message.delta.logprobs:
            choice.logprobs = (choice.logprobs or 0) + len(message.delta.logprobs)
    elif kind == "finished":
        _read_finished(answer, choice, message.finished)


def _read_finished(answer: Answer, choice: Choice, finished: pb.Finished) -> None:
    choice.ids = choice.ids or []
    choice.finish_reason = _FINISH.get(finished.reason, "abort")
    kind = finished.WhichOneof("stop")
    if kind == "stop_string":
        choice.stop_reason = finished.stop_string
    elif kind == "stop_token_id":
        choice.stop_reason = finished.stop_token_id
    stats = finished.acceptance
    answer.speculation = {
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_draft_tokens": stats.num_accepted_draft_tokens,
    }
    answer.usage = {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
    }


def _read_end(choice: Choice, part: Mapping[str, Any]) -> None:
    choice.finish_reason = part.get("finish_reason") or choice.finish_reason
    if part.get("stop_reason") is not None:
        choice.stop_reason = part["stop_reason"]


def _read_calls(choice: Choice, calls: Sequence[Mapping[str, Any]]) -> None:
    for position, call in enumerate(calls):
        index = call.get("index", position)
        function = call.get("function") or {}
        if function.get("name"):
            choice.tool_names[index] = function["name"]
        before = choice.tool_arguments.get(index, "")
        choice.tool_arguments[index] = before + (function.get("arguments") or "")


def _count_logprobs(value: Any) -> int | None:
    """Tokens told in a `logprobs` object of either endpoint."""
    if value is None:
        return None
    content = value.get("content")
    return len(value.get("tokens") or ()) if content is None else len(content)


def parse_event(data: str) -> Mapping[str, Any]:
    """Raises ValueError where an event's data is no object."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"an event is not an object: {data[:100]}")
    return value
