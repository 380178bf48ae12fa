"""Checks request bodies: types and ranges first, then what fields say of each other.

Knows which fields are refused or contradict; the fields themselves are bodies.py's. Raises
ApiError 400 naming the field, its value and what is allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.bodies import INT32_MAX, ChatBody, CompletionBody, GenerationBody, TokenizeBody
from gateway.errors import ApiError, bad_request
from gateway.fields import (
    CHAT_UNSUPPORTED,
    COMPLETION_UNSUPPORTED,
    IGNORED,
    refuse_unsupported,
    shown,
)
from gateway.prompts import SHAPE_ERROR
from gateway.tools.definitions import resolve_choice

logger = logging.getLogger(__name__)

_BodyT = TypeVar("_BodyT", bound=BaseModel)
_GenerationT = TypeVar("_GenerationT", bound=GenerationBody)


def parse_completion(body: Mapping[str, Any]) -> CompletionBody:
    """Raises ApiError 400 naming the field, its value and what is allowed."""
    refuse_unsupported(body, COMPLETION_UNSUPPORTED)
    parsed = _checked(parse(CompletionBody, body, COMPLETION_UNSUPPORTED))
    if parsed.max_tokens == 0 and not parsed.echo:
        raise bad_request(
            f"max_tokens: 0 is not allowed without echo=true; must be an integer from 1 to "
            f"{INT32_MAX}",
            "max_tokens",
        )
    return parsed


def parse_chat(body: Mapping[str, Any]) -> ChatBody:
    """Raises ApiError 400 naming the field, its value and what is allowed."""
    refuse_unsupported(body, CHAT_UNSUPPORTED)
    parsed = _checked(parse(ChatBody, body, CHAT_UNSUPPORTED))
    resolve_choice(parsed.tools, parsed.tool_choice)
    _check_continuation(parsed.add_generation_prompt, parsed.continue_final_message)
    if parsed.top_logprobs and not parsed.logprobs:
        raise bad_request(
            f"top_logprobs: {parsed.top_logprobs} is only allowed together with logprobs=true",
            "top_logprobs",
        )
    return parsed


def parse_tokenize(body: Mapping[str, Any]) -> TokenizeBody:
    """Raises ApiError 400 naming the field, its value and what is allowed."""
    parsed = parse(TokenizeBody, body)
    if (parsed.prompt is None) == (parsed.messages is None):
        raise bad_request("prompt: exactly one of prompt and messages must be given", "prompt")
    _check_continuation(parsed.add_generation_prompt, parsed.continue_final_message)
    return parsed


def parse(
    kind: type[_BodyT], body: Mapping[str, Any], known: Mapping[str, object] | None = None
) -> _BodyT:
    """`body` as `kind`; unknown fields are ignored, as by vLLM, and logged at debug level."""
    unknown = body.keys() - kind.model_fields.keys() - (known or {}).keys() - IGNORED
    if unknown:
        logger.debug("ignored unknown request fields: %s", ", ".join(sorted(unknown)))
    try:
        return kind.model_validate(dict(body))
    except ValidationError as error:
        raise _from_validation(error, kind) from None


def _checked(body: _GenerationT) -> _GenerationT:
    if body.stream_options is not None and not body.stream:
        raise bad_request(
            "stream_options: only allowed together with stream=true", "stream_options"
        )
    if body.stream and body.prompt_logprobs is not None:
        raise bad_request(
            "prompt_logprobs: not available together with stream=true", "prompt_logprobs"
        )
    if body.choices_per_prompt > 1 and body.temperature == 0:
        raise bad_request(
            f"n: {body.n} is not allowed at temperature 0, where all choices would be equal; "
            "must be 1",
            "n",
        )
    return body


def _check_continuation(add_prompt: bool | None, continue_final: bool | None) -> None:
    if add_prompt and continue_final:
        raise bad_request(
            "continue_final_message: true is not allowed together with add_generation_prompt=true",
            "continue_final_message",
        )


def _from_validation(error: ValidationError, kind: type[BaseModel]) -> ApiError:
    first = error.errors(include_url=False)[0]
    location = [part for part in first["loc"] if isinstance(part, str)]
    param = ".".join(location) or None
    if first["type"] == "missing":
        return bad_request(f"{param}: a value is required", param)
    if first["type"] == "extra_forbidden":
        return bad_request(f"{param}: no such field", param)
    if first["type"] == SHAPE_ERROR:
        return bad_request(f"{param}{first['msg']}", param)
    allowed = _description(kind, location) or first["msg"].removeprefix("Input should be ")
    return bad_request(f"{param}: {shown(first['input'])} is not allowed; must be {allowed}", param)


def _description(kind: type[BaseModel], location: list[str]) -> str | None:
    """What the field at `location` allows, in words."""
    description = None
    current: type[BaseModel] | None = kind
    for name in location:
        if current is None or name not in current.model_fields:
            return description
        info = current.model_fields[name]
        description = info.description
        nested = [
            part
            for part in getattr(info.annotation, "__args__", (info.annotation,))
            if isinstance(part, type) and issubclass(part, BaseModel)
        ]
        current = nested[0] if nested else None
    return description
