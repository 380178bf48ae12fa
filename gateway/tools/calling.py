"""What a request's tools change in the verifier's request.

Knows both sides' fields; the checks are definitions.py's, the schemas schemas.py's.
"""

from __future__ import annotations

import json

from speculation.v1 import verifier_pb2 as pb

from gateway.bodies import ChatBody
from gateway.errors import bad_request
from gateway.tools.definitions import ChoiceMode
from gateway.tools.schemas import held_to


def add_tools(request: pb.GenerateRequest, body: ChatBody) -> None:
    """Tell the chat template of the tools, and hold the answer to a call where one is asked for.

    With `tool_choice: none` the template is still told, as in vLLM: the choice is about the answer.
    Raises ApiError 400 where something else holds the answer already.
    """
    if not body.tools:
        return
    try:
        definitions = [tool.definition for tool in body.tools]
        request.chat.tools_json = json.dumps(definitions, ensure_ascii=False)
    except RecursionError:
        raise bad_request("tools: a schema is nested too deeply", "tools") from None
    choice = body.resolved_tool_choice
    if choice is ChoiceMode.NONE:
        return
    if request.HasField("structured"):
        raise bad_request(
            "tool_choice: a response_format or structured_outputs leaves no room for tool calls; "
            "leave it out, or send tool_choice 'none'",
            "tool_choice",
        )
    held = held_to(body.tools, choice, parallel=body.parallel_tool_calls is not False)
    if held is not None:
        request.structured.CopyFrom(held)
    else:
        # In some vocabularies a call's marks are special tokens; hidden, no call would be seen.
        request.sampling.skip_special_tokens = False
