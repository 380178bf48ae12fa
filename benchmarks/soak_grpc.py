"""A soak's request body as a GenerateRequest, for clients that use the verifier's stub directly.

Knows the fields that soak_kinds.py and soak_refusals.py use at gRPC places, and refuses others: a
field that would be lost on the way would not be tested.
"""

from __future__ import annotations

import json
from typing import Any

from speculation.v1 import verifier_pb2 as pb

from benchmarks.soak_draw import SoakRequest

_SAMPLING = frozenset(pb.SamplingParams.DESCRIPTOR.fields_by_name)
_DIRECT = frozenset(
    {
        "request_id",
        "add_special_tokens",
        "priority",
        "cache_salt",
        "model",
        "truncate_prompt_tokens",
    }
)
_CHAT = frozenset({"add_generation_prompt", "continue_final_message"})


def generate_request(request: SoakRequest) -> pb.GenerateRequest:
    """Raises ValueError for a field that has no place in the message."""
    message = pb.GenerateRequest()
    for name, value in request.body.items():
        _set(message, name, value)
    if request.place.is_chat and "add_generation_prompt" not in request.body:
        message.chat.add_generation_prompt = True
    return message


def _set(message: pb.GenerateRequest, name: str, value: Any) -> None:
    if name == "prompt":
        if isinstance(value, str):
            message.text = value
        else:
            message.token_ids.ids.extend(value)
    elif name == "messages":
        message.chat.messages_json = json.dumps(value)
    elif name == "stop":
        message.sampling.stop.extend([value] if isinstance(value, str) else value)
    elif name == "logit_bias":
        for token_id, bias in value.items():
            message.sampling.logit_bias[int(token_id)] = bias
    elif name == "speculative_decoding":
        message.speculation.CopyFrom(pb.SpeculationParams(**value))
    elif name == "structured_outputs":
        message.structured.CopyFrom(_structured(value))
    elif name in _CHAT:
        setattr(message.chat, name, value)
    elif name in _DIRECT:
        setattr(message, name, value)
    elif name in _SAMPLING:
        if isinstance(value, list):
            getattr(message.sampling, name).extend(value)
        else:
            setattr(message.sampling, name, value)
    else:
        raise ValueError(f"{name}: GenerateRequest has no such field")


def _structured(value: dict[str, Any]) -> pb.StructuredOutput:
    ((form, content),) = value.items()
    if form == "json":
        return pb.StructuredOutput(json_schema=json.dumps(content))
    if form == "choice":
        return pb.StructuredOutput(choice=pb.Choices(strings=content))
    return pb.StructuredOutput(**{form: content})
