"""What a request's tools change in the verifier's request.

Knows both sides' fields; the checks are definitions.py's, the grammars schemas.py's and tags.py's.
"""

from __future__ import annotations

import json

from speculation.v1 import verifier_pb2 as pb

from gateway.bodies import ChatBody
from gateway.errors import ApiError, bad_request
from gateway.tools.definitions import ChoiceMode
from gateway.tools.parsers import Notation
from gateway.tools.schemas import held_to
from gateway.tools.tags import structural_tag, tagged_answer, tagged_text


def add_tools(request: pb.GenerateRequest, body: ChatBody, notation: Notation) -> None:
    """Tell the chat template of the tools, and hold the answer to them where that is asked for.

    `request` holds what else the answer must look like. With `tool_choice: none` the template is
    still told, as in vLLM: the choice is about the answer. Raises ApiError 400 for what cannot be
    held together.
    """
    if not body.tools:
        return
    choice = body.resolved_tool_choice
    try:
        definitions = [tool.definition for tool in body.tools]
        request.chat.tools_json = json.dumps(definitions, ensure_ascii=False)
        if choice is ChoiceMode.NONE:
            return
        held = held_to(body.tools, choice, parallel=body.may_call_in_parallel)
        if held is None:
            # In some vocabularies a call's marks are special tokens; hidden, none would be seen.
            request.sampling.skip_special_tokens = False
            held = _held_when_it_calls(request, body, notation)
        elif request.HasField("structured"):
            raise _no_room(request.structured.parameter)
    except RecursionError:
        raise bad_request("tools: a schema is nested too deeply", "tools") from None
    if held is not None:
        held.parameter = request.structured.parameter or "tools"
        request.structured.CopyFrom(held)


def _held_when_it_calls(
    request: pb.GenerateRequest, body: ChatBody, notation: Notation
) -> pb.StructuredOutput | None:
    """What holds the answer to `tool_choice: auto`: a format or a call, and strict schemas."""
    parallel = body.may_call_in_parallel
    if request.HasField("structured"):
        asked = request.structured
        kind = asked.WhichOneof("constraint")
        free = not asked.disable_any_whitespace
        if (
            notation is not Notation.HERMES
            or kind not in ("json_schema", "json_object")
            or not free
        ):
            raise _no_room(asked.parameter)
        schema = {"type": "object", "additionalProperties": True}
        if kind == "json_schema":
            try:
                schema = json.loads(asked.json_schema)
            except ValueError as error:
                raise bad_request(
                    f"{asked.parameter}: the schema is not JSON: {error}", asked.parameter
                ) from None
        return structural_tag(tagged_answer(body.tools, schema, parallel=parallel))
    strict = next((i for i, tool in enumerate(body.tools) if tool.strict), None)
    if strict is None:
        return None
    if notation is not Notation.HERMES:
        raise bad_request(
            f"tools[{strict}].function.strict: true is not supported where the model writes calls "
            f"as {notation.value} does; leave it out, or send tool_choice 'required'",
            "tools",
        )
    return structural_tag(tagged_text(body.tools, parallel=parallel))


def _no_room(parameter: str) -> ApiError:
    field = parameter or "tool_choice"
    return bad_request(
        f"{field}: leaves no room for tool calls; leave {field} out, or send tool_choice 'none'",
        field,
    )
