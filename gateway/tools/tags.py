"""What holds an answer that may call: text or a JSON answer as ever, but calls in their form.

Knows xgrammar's structural tags and the Hermes notation of calls; compiling is the verifier's work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from speculation.v1 import verifier_pb2 as pb

from gateway.tools.definitions import Tool
from gateway.tools.hermes import BEGIN, END
from gateway.tools.schemas import arguments_schema

_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}


def tagged_text(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
    """Any text; where it begins a call, the call is one of `tools`, strict ones by their schemas.

    Unless `parallel`, the answer ends behind its first call.
    """
    return {
        "type": "triggered_tags",
        "triggers": [BEGIN],
        "tags": _tags(tools),
        "at_least_one": False,
        "stop_after_first": not parallel,
    }


def tagged_answer(tools: Sequence[Tool], schema: Any, *, parallel: bool) -> dict[str, Any]:
    """Either JSON of `schema`, or calls of `tools` and nothing else."""
    calls = {
        "type": "tags_with_separator",
        "tags": _tags(tools),
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    answer = {"type": "json_schema", "json_schema": schema}
    return {"type": "or", "elements": [answer, calls]}


def structural_tag(form: dict[str, Any]) -> pb.StructuredOutput:
    """`form` as the verifier takes it. Raises RecursionError for a schema nested too deeply."""
    tag = {"type": "structural_tag", "format": form}
    return pb.StructuredOutput(structural_tag=json.dumps(tag, ensure_ascii=False))


def _tags(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [
        {
            "type": "tag",
            "begin": f'{BEGIN}\n{{"name": "{tool.name}", "arguments": ',
            "content": {
                "type": "json_schema",
                "json_schema": arguments_schema(tool) if tool.strict else _ANY_OBJECT,
            },
            "end": f"}}\n{END}",
        }
        for tool in tools
    ]
