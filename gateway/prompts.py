"""Checks of the fields whose shape JSON types cannot say: prompts, messages, stop strings.

Knows shapes; does not know the vocabulary or the chat template.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import PydanticCustomError

from gateway.fields import shown

Prompt = str | list[int]

_MAX_TOKEN_ID = 2**31 - 1

# Type of the pydantic errors raised here; their message starts behind the field's name.
SHAPE_ERROR: Final = "outrider_shape"


def check_prompts(value: Any) -> list[Prompt]:
    """A string, a list of token ids, or a list of either, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong(value, "a string, a list of token ids, or a list of strings or of such lists")
    if not value:
        raise wrong(value, "at least one prompt or token id")
    if all(type(item) is int for item in value):
        return [_token_ids(value, "")]
    if all(isinstance(item, str) for item in value):
        return list(value)
    if all(isinstance(item, list) for item in value):
        return [_token_ids(item, f"[{index}]") for index, item in enumerate(value)]
    raise wrong(value, "a list of one kind: token ids, strings, or lists of token ids")


def check_stop(value: Any) -> list[str]:
    """null, a string or a list of strings, none of them empty."""
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
        raise wrong(value, "a string or a list of strings")
    if "" in stops:
        raise wrong(value, "strings of at least one character")
    return stops


def check_messages(value: Any) -> list[dict[str, Any]]:
    """OpenAI chat messages with text content; lists of text parts are joined by newlines."""
    if not isinstance(value, list):
        raise wrong(value, "a list of messages")
    if not value:
        raise wrong(value, "at least one message")
    return [_message(item, f"[{index}]") for index, item in enumerate(value)]


def _message(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(value, "an object with role and content", place)
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise wrong(role, "a string such as 'system', 'user' or 'assistant'", f"{place}.role")
    content = value.get("content")
    if content is None and role != "assistant":
        raise wrong(content, "a string or a list of text parts", f"{place}.content")
    if content is None and value.get("tool_calls"):
        # Some templates tell calls from answers by it.
        return {**value, "content": None}
    return {**value, "content": _content(content, f"{place}.content")}


def _content(value: Any, place: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong(value, "a string or a list of text parts", place)
    texts: list[str] = []
    for index, part in enumerate(value):
        at = f"{place}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise wrong(part, "an object such as {'type': 'text', 'text': '...'}", at)
        if part.get("type") not in ("text", "input_text", None):
            raise wrong(part.get("type"), "'text', the only kind supported yet", f"{at}.type")
        if not isinstance(part.get("text"), str):
            raise wrong(part.get("text"), "a string", f"{at}.text")
        texts.append(part["text"])
    return "\n".join(texts)


def _token_ids(value: list[Any], place: str) -> list[int]:
    if not value:
        raise wrong(value, "at least one token id", place)
    for index, item in enumerate(value):
        if type(item) is not int or not 0 <= item <= _MAX_TOKEN_ID:
            raise wrong(
                item, f"a token id, an integer from 0 to {_MAX_TOKEN_ID}", f"{place}[{index}]"
            )
    return value


def wrong(value: object, allowed: str, place: str = "") -> PydanticCustomError:
    """An error whose message is complete but for the field's name before it."""
    return PydanticCustomError(
        SHAPE_ERROR,
        "{complete}",
        {"complete": f"{place}: {shown(value)} is not allowed; must be {allowed}"},
    )
