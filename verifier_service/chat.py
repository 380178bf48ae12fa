"""Chat messages to the prompt text that a model's own template makes of them.

Knows OpenAI's message shapes and transformers' templates; knows no ids and no transport.
"""

from __future__ import annotations

import inspect
import json
from typing import Any, Final

from speculation.v1 import verifier_pb2
from transformers import PreTrainedTokenizerBase

from verifier_service.request_error import RequestError, shorten
from verifier_service.tool_prompt import as_text, takes_tools, with_parsed_calls

# What a client may not set through template variables: the template itself, and what the
# messages of verifier.proto say with fields of their own.
_RESERVED = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {
    "messages"
}

# How the model is told of tools (GetInfoResponse.tools_in_prompt).
TOLD_BY_TEMPLATE: Final = "template"
TOLD_BY_INSTRUCTION: Final = "instruction"


def tools_in_prompt(tokenizer: PreTrainedTokenizerBase) -> str:
    """How `render_chat` tells the model of tools; empty for a model without a chat template."""
    if not tokenizer.chat_template:
        return ""
    # A tokenizer may have a second template for requests with tools.
    takes = takes_tools(tokenizer.get_chat_template(tools=[{}]))
    return TOLD_BY_TEMPLATE if takes else TOLD_BY_INSTRUCTION


def render_chat(tokenizer: PreTrainedTokenizerBase, chat: verifier_pb2.ChatMessages) -> str:
    """The prompt. Raises RequestError naming the part at fault, or the template's own reason."""
    if not tokenizer.chat_template and not chat.chat_template:
        raise RequestError(
            "messages cannot be used: the model has no chat template; send a prompt instead",
            field="messages",
        )
    if chat.add_generation_prompt and chat.continue_final_message:
        raise RequestError(
            "continue_final_message true cannot be combined with add_generation_prompt true",
            field="continue_final_message",
        )
    messages = _messages(chat.messages_json)
    tools = _objects(chat.tools_json, "tools")
    documents = _objects(chat.documents_json, "documents")
    variables = _variables(chat.template_kwargs_json)
    try:
        source = chat.chat_template or tokenizer.get_chat_template(tools=tools)
        if not takes_tools(source):
            messages, tools = as_text(messages, tools or []), None
        prompt = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            documents=documents,
            chat_template=chat.chat_template or None,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            tokenize=False,
            **variables,
        )
    except Exception as error:
        # A template is its author's code: whatever it raises, it raises at these messages.
        reason = shorten(str(error).splitlines()[0] if str(error) else "no reason given", 300)
        whose = "the request's" if chat.chat_template else "the model's"
        raise RequestError(
            f"messages do not fit {whose} chat template: {type(error).__name__}: {reason}",
            field="chat_template" if chat.chat_template else "messages",
        ) from error
    return str(prompt)


def _messages(messages_json: str) -> list[dict[str, Any]]:
    messages = _load(messages_json, "messages", list, "an array of messages")
    if not messages:
        raise RequestError("messages [] is empty: at least one is needed", field="messages")
    return [_message(message, index) for index, message in enumerate(messages)]


def _message(message: object, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise RequestError(
            f"{where} {_shown(message)} is not an object with role and content", field="messages"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"{where}.role {_shown(role)} is not a non-empty string", field="messages"
        )
    content = message.get("content")
    if isinstance(content, list):
        message = {**message, "content": _join_parts(content, where)}
        return with_parsed_calls(message, where)
    if content is not None and not isinstance(content, str):
        raise RequestError(
            f"{where}.content {_shown(content)} is neither a string nor an array of text parts",
            field="messages",
        )
    if content is None and not message.get("tool_calls"):
        raise RequestError(
            f"{where}.content is missing: a string or an array of text parts is needed",
            field="messages",
        )
    return with_parsed_calls(message, where)


def _join_parts(parts: list[object], where: str) -> str:
    texts: list[str] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise RequestError(
                f"{where}.content[{index}] of type {_shown(kind)} is not supported: only "
                'parts {"type": "text", "text": "..."} are',
                field="messages",
            )
        texts.append(text)
    return "\n".join(texts)


def _objects(text: str, field: str) -> list[Any] | None:
    if not text:
        return None
    items = _load(text, field, list, f"an array of {field}")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise RequestError(f"{field}[{index}] {_shown(item)} is not an object", field=field)
    return items or None


def _variables(kwargs_json: str) -> dict[str, Any]:
    if not kwargs_json:
        return {}
    field = "chat_template_kwargs"
    variables: dict[str, Any] = _load(kwargs_json, field, dict, "an object")
    reserved = sorted(_RESERVED & variables.keys())
    if reserved:
        raise RequestError(
            f"{field}.{reserved[0]} cannot be set: the name is reserved", field=field
        )
    return variables


def _load(text: str, field: str, kind: type, wanted: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"{field} is not JSON: {reason}", field=field) from error
    if not isinstance(value, kind):
        raise RequestError(f"{field} {_shown(value)} is not {wanted}", field=field)
    return value


def _shown(value: object) -> str:
    return shorten(json.dumps(value, ensure_ascii=False))
