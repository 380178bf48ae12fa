"""Tools and tool calls in the messages that a chat template gets.

Knows OpenAI's shapes of calls and the Hermes notation; knows no tokenizer. A template that never
mentions tools would drop them without a word: for such models tools and calls become text of the
messages (docs/verifier.md shows it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from verifier_service.request_error import RequestError, shorten

_MENTIONS_TOOLS: Final = re.compile(r"\btools\b")
_SYSTEM_ROLES: Final = ("system", "developer")

INSTRUCTION: Final = """\
You can call functions. Each line between the tags below describes one, with a JSON schema of its \
arguments:
<tools>
{tools}
</tools>
To call a function, write a JSON object with its name and arguments between these tags, and one \
such block for each call:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
What a function returns comes back between <tool_response> and </tool_response>. If no function is \
needed, answer without these tags."""


def takes_tools(template: str) -> bool:
    """Whether a chat template's source mentions the variable that holds the tools."""
    return _MENTIONS_TOOLS.search(template) is not None


def with_parsed_calls(message: dict[str, Any], where: str) -> dict[str, Any]:
    """`message` with its calls' arguments as objects, which templates write as JSON themselves.

    `where` is the message's place in the request. Raises RequestError naming what is wrong there.
    """
    if message.get("function_call") is not None:
        raise _wrong(f"{where}.function_call", "deprecated and not supported; send tool_calls")
    if "tool_calls" not in message:
        return message
    calls = message["tool_calls"]
    if not calls:
        # Clients send null or [] for none; templates take the key's presence for calls.
        return {key: value for key, value in message.items() if key != "tool_calls"}
    if not isinstance(calls, list):
        raise _wrong(f"{where}.tool_calls", f"{_shown(calls)} is not an array")
    parsed = [_parsed(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return {**message, "tool_calls": parsed}


def as_text(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`messages` for a template without tools: calls, results and `tools` are text in them.

    The tools stand at the end of the first system message, or in one of their own. A result is the
    user's message: no other role is sure to be one that the template knows.
    """
    texts: list[dict[str, Any]] = []
    previous = ""
    for message in messages:
        role = message["role"]
        if role == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if previous == "tool":
                texts[-1]["content"] += "\n" + result
            else:
                texts.append({"role": "user", "content": result})
        elif message.get("tool_calls"):
            blocks = [_block(call["function"]) for call in message["tool_calls"]]
            content = "\n".join([*filter(None, [message.get("content")]), *blocks])
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            texts.append({**rest, "content": content})
        else:
            texts.append(message)
        previous = role
    if not tools:
        return texts
    instruction = INSTRUCTION.format(tools="\n".join(_json(tool) for tool in tools))
    if texts[0]["role"] not in _SYSTEM_ROLES:
        return [{"role": "system", "content": instruction}, *texts]
    first = {**texts[0], "content": f"{texts[0]['content']}\n\n{instruction}"}
    return [first, *texts[1:]]


def _parsed(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise _wrong(where, f"{_shown(call)} is not an object with a function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{where}.function.name", f"{_shown(name)} is not a non-empty string")
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise _wrong(
                f"{where}.function.arguments", f"{_shown(arguments)} is not JSON"
            ) from None
    if not isinstance(arguments, dict):
        raise _wrong(
            f"{where}.function.arguments", f"{_shown(arguments)} is not a JSON object as text"
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _block(function: dict[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{_json(call)}\n</tool_call>"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown(value: object) -> str:
    return shorten(json.dumps(value, ensure_ascii=False))


def _wrong(where: str, what: str) -> RequestError:
    return RequestError(f"{where} {what}", field="messages")
