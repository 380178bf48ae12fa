"""Requests that a server must refuse with a 400 naming the parameter at fault.

Knows one way to spoil a valid request for each; over gRPC the same is INVALID_ARGUMENT with the
field in the trailing metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.soak_draw import Draw, Place
from benchmarks.soak_kinds import CHAT, CHATS, COMPLETIONS, GENERATIONS, HTTP, TEXTS
from benchmarks.soak_texts import tool


@dataclass(frozen=True, slots=True)
class Refusal:
    """`param` is the field that must be named; `grpc_param` where the verifier's own differs."""

    name: str
    param: str
    places: frozenset[Place]
    spoil: Callable[[Draw], None]
    grpc_param: str = ""

    def param_at(self, place: Place) -> str:
        return self.grpc_param if place.is_grpc and self.grpc_param else self.param


def _with(**fields: Any) -> Callable[[Draw], None]:
    return lambda draw: draw.body.update(fields)


def _structured(**fields: Any) -> Callable[[Draw], None]:
    return _with(structured_outputs=fields)


def _too_long(draw: Draw) -> None:
    ids = [1] * (draw.facts.max_model_len + 1)
    draw.body.update(prompt=ids)


def _too_many_tokens(draw: Draw) -> None:
    draw.body.pop("max_completion_tokens", None)
    draw.body["max_tokens"] = draw.facts.max_model_len


def _outside(field: str, wrap: Callable[[int], Any]) -> Callable[[Draw], None]:
    def spoil(draw: Draw) -> None:
        draw.body[field] = wrap(draw.facts.vocab_size)

    return spoil


def _too_high_k(draw: Draw) -> None:
    too_high = draw.facts.num_speculative_tokens + 1
    draw.body["speculative_decoding"] = {"num_speculative_tokens": too_high}


def _both_formats(draw: Draw) -> None:
    draw.body["structured_outputs"] = {"regex": "a", "choice": ["a"]}


DETOKENIZE = frozenset({Place.DETOKENIZE})
TOKENIZE = frozenset({Place.TOKENIZE})

REFUSALS: tuple[Refusal, ...] = (
    Refusal("temperature too high", "temperature", GENERATIONS, _with(temperature=2.5)),
    Refusal("temperature below 0", "temperature", GENERATIONS, _with(temperature=-0.1)),
    Refusal("temperature of another type", "temperature", HTTP, _with(temperature="hot")),
    Refusal("top_p 0", "top_p", GENERATIONS, _with(top_p=0)),
    Refusal("top_k -2", "top_k", GENERATIONS, _with(top_k=-2)),
    Refusal("min_p above 1", "min_p", GENERATIONS, _with(min_p=1.5)),
    Refusal("presence_penalty 3", "presence_penalty", GENERATIONS, _with(presence_penalty=3)),
    Refusal("frequency_penalty -3", "frequency_penalty", GENERATIONS, _with(frequency_penalty=-3)),
    Refusal("repetition_penalty 0", "repetition_penalty", GENERATIONS, _with(repetition_penalty=0)),
    Refusal(
        "logit_bias of no token",
        "logit_bias",
        GENERATIONS,
        _outside("logit_bias", lambda v: {v: 1}),
    ),
    Refusal(
        "allowed ids of no token",
        "allowed_token_ids",
        GENERATIONS,
        _outside("allowed_token_ids", lambda v: [v]),
    ),
    Refusal(
        "stop ids of no token",
        "stop_token_ids",
        GENERATIONS,
        _outside("stop_token_ids", lambda v: [v]),
    ),
    Refusal(
        "min_tokens above max_tokens",
        "min_tokens",
        GENERATIONS,
        lambda draw: draw.body.update(min_tokens=draw.max_tokens + 1),
    ),
    Refusal("empty stop", "stop", GENERATIONS, _with(stop=[""])),
    Refusal("n 0", "n", HTTP, _with(n=0)),
    Refusal("n 2 greedily", "n", HTTP, _with(n=2, temperature=0)),
    Refusal("max_tokens 0", "max_tokens", TEXTS, _with(max_tokens=0)),
    Refusal("max_tokens beyond the context", "max_tokens", GENERATIONS, _too_many_tokens),
    Refusal("prompt beyond the context", "prompt", TEXTS, _too_long),
    Refusal("prompt of no token", "prompt", TEXTS, _outside("prompt", lambda v: [v])),
    Refusal("empty prompt", "prompt", COMPLETIONS, _with(prompt=[])),
    Refusal("no messages", "messages", CHAT, _with(messages=[])),
    Refusal("messages without content", "messages", CHAT, _with(messages=[{"role": "user"}])),
    Refusal(
        "stream options alone",
        "stream_options",
        HTTP,
        _with(stream_options={"include_usage": True}),
    ),
    Refusal("logprobs 10,000", "logprobs", TEXTS, _with(logprobs=10_000)),
    Refusal("top_logprobs 10,000", "top_logprobs", CHAT, _with(logprobs=True, top_logprobs=10_000)),
    Refusal("prompt_logprobs -7", "prompt_logprobs", HTTP, _with(prompt_logprobs=-7)),
    Refusal("seed of another type", "seed", HTTP, _with(seed="one")),
    Refusal(
        "K above the ceiling",
        "speculative_decoding.num_speculative_tokens",
        GENERATIONS,
        _too_high_k,
    ),
    Refusal(
        "unknown proposer",
        "speculative_decoding.proposer",
        GENERATIONS,
        _with(speculative_decoding={"proposer": "no"}),
    ),
    Refusal(
        "unknown speculation field",
        "speculative_decoding.depth",
        HTTP,
        _with(speculative_decoding={"depth": 1}),
    ),
    Refusal(
        "regex that does not compile",
        "structured_outputs",
        GENERATIONS,
        _structured(regex="(["),
        "structured",
    ),
    Refusal(
        "grammar that does not compile",
        "structured_outputs",
        GENERATIONS,
        _structured(grammar="root ::= (("),
        "structured",
    ),
    Refusal(
        "schema that is none",
        "structured_outputs",
        GENERATIONS,
        _structured(json={"type": "nothing"}),
        "structured",
    ),
    Refusal("two formats", "structured_outputs", HTTP, _both_formats),
    Refusal(
        "response_format unknown", "response_format", HTTP, _with(response_format={"type": "xml"})
    ),
    Refusal("tool_choice without tools", "tool_choice", CHAT, _with(tool_choice="required")),
    Refusal(
        "tool_choice of no tool",
        "tool_choice.function.name",
        CHAT,
        _with(
            tools=[tool("tides")],
            tool_choice={"type": "function", "function": {"name": "winds"}},
        ),
    ),
    Refusal("unknown role", "messages", CHATS & CHAT, _with(messages=[{"content": "x"}])),
    Refusal("tokens of no token", "tokens", DETOKENIZE, _outside("tokens", lambda v: [v])),
    Refusal(
        "nothing to tokenize", "prompt", TOKENIZE, lambda draw: draw.body.pop("prompt") and None
    ),
)
