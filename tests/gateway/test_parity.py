"""Every parameter of the verifier's requests can be set over HTTP, and every field does something.

Both sides are read from the code, so that a parameter or a field that is forgotten fails here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message import Message
from speculation.v1 import verifier_pb2 as pb

from gateway.bodies import ChatBody, CompletionBody
from gateway.calls import chat_request, completion_request, for_choice, tokenize_request
from gateway.requests import parse_chat, parse_completion, parse_tokenize
from gateway.settings import GatewaySettings, SpecDecodeMetrics
from tests.gateway.fake_verifier import MODEL

SETTINGS = GatewaySettings(
    verifiers=("unix:/v",), per_request_spec_decode_metrics=SpecDecodeMetrics.DETAILED
)
MESSAGES = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

BOTH: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "min_tokens": 5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {"5": 1},
    "bad_words": ["no"],
    "allowed_token_ids": [5],
    "seed": 5,
    "stop": ["end"],
    "stop_token_ids": [5],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "add_special_tokens": True,
    "prompt_logprobs": 5,
    "priority": 5,
    "cache_salt": "salt",
    "truncate_prompt_tokens": 5,
    "truncation_side": "right",
    "speculative_decoding": {"enabled": True, "num_speculative_tokens": 1, "proposer": "n"},
    "prediction": {"type": "content", "content": "ab"},
}
COMPLETION: dict[str, Any] = {**BOTH, "prompt": [[5]], "max_tokens": 5, "logprobs": 5}
CHAT: dict[str, Any] = {
    **BOTH,
    "max_tokens": 5,
    "max_completion_tokens": 6,
    "logprobs": True,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "documents": [{"text": "x"}],
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"a": 1},
    "reasoning_effort": "low",
    "tools": [TOOL],
}
CONSTRAINTS: dict[str, Any] = {
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a+"},
}
# What the gateway does itself, and what every request has.
ELSEWHERE = {
    "echo",
    "messages",
    "model",
    "n",
    "request_id",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "stream",
    "stream_interval",
    "stream_options",
}
COMPANIONS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
    "tool_choice": {"tools": [TOOL], "tool_choice": "required"},
    "parallel_tool_calls": {
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    "truncation_side": {"truncate_prompt_tokens": 5, "truncation_side": "right"},
}


def completion(fields: Mapping[str, Any]) -> pb.GenerateRequest:
    body = parse_completion({"prompt": "x", **fields})
    return completion_request(body, body.prompt[0], MODEL, SETTINGS)


def chat(fields: Mapping[str, Any]) -> pb.GenerateRequest:
    return chat_request(parse_chat({"messages": MESSAGES, **fields}), MODEL, SETTINGS)


def set_in(message: Message) -> set[str]:
    return {field.name for field, _ in message.ListFields()}


def fields_of(message: Any) -> set[str]:
    return set(message.DESCRIPTOR.fields_by_name)


def test_every_parameter_can_be_set_over_http() -> None:
    by_ids, by_chat, by_text = completion(COMPLETION), chat(CHAT), completion({})
    for one in (by_ids, chat({**CHAT, "tools": None})):
        assert set_in(one.sampling) == fields_of(pb.SamplingParams)
        assert set_in(one.speculation) == fields_of(pb.SpeculationParams)
    assert set_in(by_chat.chat) == fields_of(pb.ChatMessages) - {"add_generation_prompt"}
    assert chat({}).chat.add_generation_prompt
    held = completion({"structured_outputs": {"regex": "a"}})
    named = for_choice(by_text, request_id="r", number=0, seed=None)
    told = set().union(*map(set_in, (by_ids, by_chat, by_text, held, named)))
    # The gateway always wants text; a header names the workload.
    unset = {"detokenize", "include_rounds", "workload"}
    assert told == fields_of(pb.GenerateRequest) - unset


def test_every_parameter_of_tokenize_can_be_set_over_http() -> None:
    fields = {"add_special_tokens": True, "return_token_strs": True}
    text = tokenize_request(parse_tokenize({"prompt": "x", **fields}))
    names = {"chat_template", "chat_template_kwargs", "documents", "tools"}
    sent = {name: CHAT[name] for name in names}
    messages = tokenize_request(parse_tokenize({"messages": MESSAGES, **sent}))
    cut = {"truncate_prompt_tokens", "truncate_right", "reserved_tokens", "token_ids"}
    assert set_in(text) | set_in(messages) == fields_of(pb.TokenizeRequest) - cut
    assert messages.chat.tools_json == chat({"tools": [TOOL]}).chat.tools_json
    assert set_in(messages.chat) == fields_of(pb.ChatMessages) - {"continue_final_message"}


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [
        *((name, "completions") for name in sorted(CompletionBody.model_fields.keys() - ELSEWHERE)),
        *((name, "chat") for name in sorted(ChatBody.model_fields.keys() - ELSEWHERE)),
    ],
)
def test_every_field_changes_what_is_asked(name: str, endpoint: str) -> None:
    build, fields = (completion, COMPLETION) if endpoint == "completions" else (chat, CHAT)
    sent = COMPANIONS.get(name) or {name: {**fields, **CONSTRAINTS}[name]}
    without = {key: value for key, value in sent.items() if key != name}
    assert build(sent) != build(without)
