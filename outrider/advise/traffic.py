"""Lines of a traffic file, in any of the accepted formats, to requests and their recorded outputs.

Knows JSON shapes: our own, OpenAI chat logs, ShareGPT. Does not know a tokenizer or a proposer.
docs/choosing.md lists the formats; whatever else a line holds is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.advise.fields import (
    BadLineError,
    Ids,
    cached_tokens,
    finish_reason,
    max_tokens,
    salt_of,
    shown,
    text_of,
    token_ids,
)
from outrider.config import nearest
from outrider.errors import InputError

# What a request may say of its sampling; sent along where its output is generated.
SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logit_bias"),
)
_FIELDS = ("prompt", "prompt_token_ids", "messages", "conversations", "output", "output_token_ids")
_ROLES = dict.fromkeys(("human", "user"), "user") | {"system": "system"}
_ROLES |= dict.fromkeys(("gpt", "chatgpt", "bing", "assistant"), "assistant")


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages behind which the answer follows, as JSON, and the tools offered (may be empty)."""

    messages_json: str
    tools_json: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of the file; `where` names its place for messages.

    `output` None: nothing is recorded, it has to be generated. `finish_reason` is empty where it
    is not known; `stop_string` says that a stop string, not an end-of-sequence id, ended it;
    `cached_prompt_tokens` that so many came from the verifier's prefix cache.
    """

    where: str
    prompt: str | Ids | Chat
    output: str | Ids | None
    finish_reason: str = ""
    stop_string: bool = False
    max_tokens: int | None = None
    salt: str = ""
    sampling: Mapping[str, Any] | None = None
    cached_prompt_tokens: int = 0


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank. Raises InputError where the file cannot be read."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.lstrip()[:1] == b"[":
                    raise InputError(
                        f"TRAFFIC: {path} begins with a JSON array; write one object a line "
                        f"(jq -c '.[]' {path.name})"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"TRAFFIC: {path} cannot be read: {reason}") from error


def parse_line(number: int, line: bytes) -> list[Recorded]:
    """The requests of one line: one, or one for each choice or answer of a conversation.

    Raises BadLineError.
    """
    where = f"line {number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadLineError(f"{where}: {shown(value)}: must be a JSON object")
    request = value.get("request")
    if isinstance(request, dict):
        value = {**request, **{key: value[key] for key in value if key != "request"}}
    if "conversations" in value:
        return _conversation(where, value)
    prompt = _prompt(where, value)
    if isinstance(prompt, Chat) and not _answered(value):
        prompt, output = _last_message(prompt)
    else:
        output = _output(where, value)
    recorded = Recorded(
        where=where,
        prompt=prompt,
        output=output,
        finish_reason=finish_reason(where, "finish_reason", value.get("finish_reason")),
        stop_string=isinstance(value.get("stop_reason"), str),
        max_tokens=max_tokens(where, value),
        salt=salt_of(where, value),
        sampling={key: value[key] for key in SAMPLING_FIELDS if value.get(key) is not None},
        cached_prompt_tokens=cached_tokens(where, "cached_prompt_tokens", value),
    )
    response = value.get("response")
    return [recorded] if response is None else with_response(recorded, response)


def with_response(recorded: Recorded, response: object) -> list[Recorded]:
    """The request with its answer: text, a message, or a completion object (one for each choice).

    Raises BadLineError.
    """
    where = recorded.where
    if isinstance(response, str):
        return [replace(recorded, output=response)]
    if isinstance(response, dict) and "choices" not in response:
        text = text_of(where, "response.content", response.get("content"))
        return [replace(recorded, output=text)]
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(response, dict) or not isinstance(choices, list) or not choices:
        raise BadLineError(
            f"{where}: response: {shown(response)}: must be text, a message with content, or an "
            "object with choices"
        )
    prompt_ids = response.get("prompt_token_ids")
    usage = response.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = cached_tokens(where, "cached_tokens", details if isinstance(details, dict) else {})
    result = []
    for index, choice in enumerate(choices):
        field = f"response.choices[{index}]"
        if not isinstance(choice, dict):
            raise BadLineError(f"{where}: {field}: {shown(choice)}: must be an object")
        own_ids = choice.get("prompt_token_ids", prompt_ids)
        prompt = recorded.prompt
        if own_ids is not None:
            prompt = token_ids(where, f"{field}.prompt_token_ids", own_ids)
        finish = finish_reason(where, f"{field}.finish_reason", choice.get("finish_reason"))
        result.append(
            replace(
                recorded,
                where=where if len(choices) == 1 else f"{where}, choice {index}",
                prompt=prompt,
                output=_choice_output(where, field, choice),
                finish_reason=finish or recorded.finish_reason,
                stop_string=isinstance(choice.get("stop_reason"), str),
                cached_prompt_tokens=cached or recorded.cached_prompt_tokens,
            )
        )
    return result


def _choice_output(where: str, field: str, choice: Mapping[str, Any]) -> str | Ids:
    if choice.get("token_ids") is not None:
        return token_ids(where, f"{field}.token_ids", choice["token_ids"])
    message = choice.get("message")
    if isinstance(message, dict):
        if message.get("tool_calls") and not message.get("content"):
            raise BadLineError(
                f"{where}: {field}.message.content: empty beside tool_calls; give {field}.token_ids"
            )
        return text_of(where, f"{field}.message.content", message.get("content"))
    return text_of(where, f"{field}.text", choice.get("text"))


def _prompt(where: str, value: Mapping[str, Any]) -> str | Ids | Chat:
    given = [name for name in ("prompt_token_ids", "messages", "prompt") if value.get(name)]
    # Ids beside the text or messages that they come from say the same, exactly.
    if "prompt_token_ids" in given:
        return token_ids(where, "prompt_token_ids", value["prompt_token_ids"])
    if len(given) > 1:
        raise BadLineError(f"{where}: prompt and messages are both given; give one of them")
    if not given:
        hints = [nearest(name, _FIELDS) for name in value if name not in _FIELDS]
        raise BadLineError(
            f"{where}: no prompt; one of prompt, prompt_token_ids, messages or conversations is "
            f"needed{next(filter(None, hints), '')}"
        )
    if given == ["messages"]:
        return _chat(where, "messages", value["messages"], value.get("tools"))
    if isinstance(value["prompt"], str):
        return value["prompt"]
    return token_ids(where, "prompt", value["prompt"], "a string or a list of token ids")


def _output(where: str, value: Mapping[str, Any]) -> str | Ids | None:
    ids, output = value.get("output_token_ids"), value.get("output")
    if (ids is not None or output is not None) and value.get("response") is not None:
        raise BadLineError(f"{where}: output and response are both given; give one of them")
    if ids is not None:
        return token_ids(where, "output_token_ids", ids, empty=True)
    if output is None or isinstance(output, str):
        return output
    return token_ids(where, "output", output, "a string or a list of token ids", empty=True)


def _answered(value: Mapping[str, Any]) -> bool:
    return any(value.get(name) is not None for name in ("output", "output_token_ids", "response"))


def _last_message(chat: Chat) -> tuple[Chat, str | Ids | None]:
    """A chat that ends with the assistant's words is a chat and its output."""
    messages = json.loads(chat.messages_json)
    last = messages[-1]
    if len(messages) > 1 and last.get("role") == "assistant" and isinstance(last["content"], str):
        return replace(chat, messages_json=json.dumps(messages[:-1])), last["content"]
    return chat, None


def _chat(where: str, field: str, messages: object, tools: object = None) -> Chat:
    if not isinstance(messages, list) or not messages:
        raise BadLineError(f"{where}: {field}: {shown(messages)}: must be a list of messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadLineError(
                f"{where}: {field}[{index}]: {shown(message)}: must be an object with role and "
                "content"
            )
    if tools is not None and not isinstance(tools, list):
        raise BadLineError(f"{where}: tools: {shown(tools)}: must be a list of tools")
    return Chat(json.dumps(messages), json.dumps(tools) if tools else "")


def _conversation(where: str, value: Mapping[str, Any]) -> list[Recorded]:
    """ShareGPT: each answer of the conversation is a request behind all that was said before."""
    turns = value["conversations"]
    if not isinstance(turns, list) or not turns:
        raise BadLineError(f"{where}: conversations: {shown(turns)}: must be a list of turns")
    said: list[dict[str, str]] = []
    result = []
    for index, turn in enumerate(turns):
        field = f"conversations[{index}]"
        if not isinstance(turn, dict):
            raise BadLineError(f"{where}: {field}: {shown(turn)}: must be an object")
        role = _ROLES.get(str(turn.get("from")))
        if role is None:
            raise BadLineError(
                f"{where}: {field}.from: {shown(turn.get('from'))}: must be one of "
                f"{', '.join(_ROLES)}"
            )
        text = text_of(where, f"{field}.value", turn.get("value"))
        if role == "assistant" and said:
            chat = Chat(json.dumps(said))
            place = f"{where}, turn {index}"
            result.append(Recorded(place, chat, text, salt=salt_of(where, value)))
        said.append({"role": role, "content": text})
    if not result:
        raise BadLineError(f"{where}: conversations: holds no answer (from: gpt) behind a question")
    return result
