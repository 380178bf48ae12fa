"""OpenAI's `prediction`: text that the client expects in the answer.

Knows the object's shape; that it changes nothing but speed is the verifier's doing.
"""

from __future__ import annotations

from typing import Any

from gateway.prompts import wrong

_ALLOWED = "an object such as {'type': 'content', 'content': '...'}"


def check_prediction(value: Any) -> str | None:
    """The predicted text: `content` of `{"type": "content", "content": ...}`, null for none.

    Parts are joined as they are: together they are one text. Raises PydanticCustomError.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong(value, _ALLOWED)
    unknown = sorted(value.keys() - {"type", "content"})
    if unknown:
        raise wrong(value, f"{_ALLOWED}, without {unknown[0]}")
    if value.get("type") != "content":
        raise wrong(value.get("type"), "'content', the only kind there is", ".type")
    content = value.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong(content, "a string or a list of text parts", ".content")
    return "".join(_part(part, f".content[{index}]") for index, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict):
        raise wrong(part, "an object such as {'type': 'text', 'text': '...'}", place)
    if part.get("type") != "text":
        raise wrong(part.get("type"), "'text', the only kind of predicted part", f"{place}.type")
    if not isinstance(part.get("text"), str):
        raise wrong(part.get("text"), "a string", f"{place}.text")
    text: str = part["text"]
    return text
