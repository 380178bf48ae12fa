"""Turns checked request bodies into the verifier's Generate and Tokenize requests.

Knows both vocabularies of field names; sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from speculation.v1 import verifier_pb2 as pb

from gateway.bodies import INT64_MAX, ChatBody, CompletionBody, GenerationBody, TokenizeBody
from gateway.errors import bad_request
from gateway.logprobs import LogprobOptions, logprob_options
from gateway.prompts import Prompt
from gateway.sampling_fields import add_sampling_fields
from gateway.settings import GatewaySettings, SpecDecodeMetrics
from gateway.structured import add_structured
from gateway.tools.calling import add_tools

_SEEDS: Final = 2**64
# An answer that is not streamed needs few messages: so many tokens each, for who looks meanwhile.
_WHOLE_INTERVAL: Final = 64


@dataclass(frozen=True, slots=True)
class ChoiceCall:
    """One Generate call: choice `index` of the response, for prompt number `prompt_index`."""

    index: int
    prompt_index: int
    request: pb.GenerateRequest
    # Text that the choice starts with (`echo`).
    echo: str = ""
    # The prompt's ids, where the client asked for them.
    prompt_token_ids: tuple[int, ...] | None = None
    # Only the echoed prompt is wanted; the one token that is generated is nobody's.
    prompt_only: bool = False


def completion_request(
    body: CompletionBody, prompt: Prompt, model: str, settings: GatewaySettings
) -> pb.GenerateRequest:
    """The request of one prompt, still without id and per-choice seed."""
    # Nothing is computed for no token at all: the prompt is scored with one.
    limit = 1 if body.max_tokens == 0 else body.max_tokens
    request = _request(body, model, settings, limit)
    _ask_logprobs(request, logprob_options(body))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def chat_request(body: ChatBody, model: str, settings: GatewaySettings) -> pb.GenerateRequest:
    """The request of a chat, still without id and per-choice seed."""
    limit = body.max_completion_tokens or body.max_tokens
    request = _request(body, model, settings, limit)
    request.chat.CopyFrom(_chat(body))
    add_tools(request, body, settings.tool_call_parser)
    _ask_logprobs(request, logprob_options(body))
    return request


def chat_echo(body: ChatBody) -> str:
    """Text that the answer starts with: the last message's, where it is the assistant's too."""
    last = body.messages[-1]
    return (last["content"] or "") if body.echo and last["role"] == "assistant" else ""


def tokenize_request(body: TokenizeBody) -> pb.TokenizeRequest:
    special = body.add_special_tokens
    request = pb.TokenizeRequest(
        add_special_tokens=body.messages is None if special is None else special,
        return_token_strings=bool(body.return_token_strs),
    )
    if body.messages is not None:
        request.chat.CopyFrom(_chat(body))
        if body.tools:
            request.chat.tools_json = _json([tool.definition for tool in body.tools], "tools")
    else:
        request.text = body.prompt or ""
    return request


def prompt_tokenize_request(request: pb.GenerateRequest) -> pb.TokenizeRequest:
    """The Tokenize call that gives the ids `request` would be answered for."""
    kind = request.WhichOneof("prompt")
    tokenize = pb.TokenizeRequest(
        add_special_tokens=request.add_special_tokens
        if request.HasField("add_special_tokens")
        else kind != "chat",
        reserved_tokens=request.sampling.max_tokens,
        truncate_right=request.truncate_right,
    )
    if request.HasField("truncate_prompt_tokens"):
        tokenize.truncate_prompt_tokens = request.truncate_prompt_tokens
    if kind == "chat":
        tokenize.chat.CopyFrom(request.chat)
    elif kind == "token_ids":
        tokenize.token_ids.CopyFrom(request.token_ids)
    else:
        tokenize.text = request.text
    return tokenize


def for_choice(
    request: pb.GenerateRequest, *, request_id: str, number: int, seed: int | None
) -> pb.GenerateRequest:
    """`request` for the `number`-th choice of its prompt; its seed is `seed` + `number`."""
    copy = pb.GenerateRequest()
    copy.CopyFrom(request)
    copy.request_id = request_id
    if seed is not None:
        copy.sampling.seed = (seed + number + INT64_MAX + 1) % _SEEDS - INT64_MAX - 1
    return copy


def check_choices(prompts: Sequence[object], body: GenerationBody, limit: int) -> None:
    """Raises ApiError 400 when prompts x n is above `limit`."""
    total = len(prompts) * body.choices_per_prompt
    if total > limit:
        field = "n" if len(prompts) == 1 else "prompt"
        raise bad_request(
            f"{field}: {len(prompts)} prompts x n={body.choices_per_prompt} are {total} choices; "
            f"must be at most {limit}",
            field,
        )


def _request(
    body: GenerationBody, model: str, settings: GatewaySettings, max_tokens: int | None
) -> pb.GenerateRequest:
    request = pb.GenerateRequest(
        model=model,
        sampling=pb.SamplingParams(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            seed=body.seed,
            max_tokens=max_tokens,
            stop=body.stop,
            stop_token_ids=body.stop_token_ids,
            ignore_eos=bool(body.ignore_eos),
            include_stop_str_in_output=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skip_special_tokens,
        ),
        add_special_tokens=body.add_special_tokens,
        detailed_acceptance=settings.per_request_spec_decode_metrics is SpecDecodeMetrics.DETAILED,
        priority=body.priority,
        cache_salt=body.cache_salt,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncate_right=body.truncation_side == "right",
        stream_interval=(body.stream_interval or 1) if body.stream else _WHOLE_INTERVAL,
    )
    add_sampling_fields(request.sampling, body)
    add_structured(request, body)
    if body.prediction is not None:
        request.prediction.text = body.prediction
    speculative = body.speculative_decoding
    if speculative is not None:
        request.speculation.CopyFrom(
            pb.SpeculationParams(
                enabled=speculative.enabled,
                num_speculative_tokens=speculative.num_speculative_tokens,
                proposer=speculative.proposer,
            )
        )
        request.include_rounds = bool(speculative.rounds)
    return request


def _ask_logprobs(request: pb.GenerateRequest, options: LogprobOptions) -> None:
    if options.output is not None:
        request.sampling.logprobs = options.output
    if options.of_prompt is not None:
        request.sampling.prompt_logprobs = options.of_prompt


def _chat(body: ChatBody | TokenizeBody) -> pb.ChatMessages:
    continue_final = bool(body.continue_final_message)
    add_prompt = body.add_generation_prompt
    kwargs = dict(body.chat_template_kwargs or {})
    if isinstance(body, ChatBody) and body.reasoning_effort is not None:
        kwargs["reasoning_effort"] = body.reasoning_effort
    return pb.ChatMessages(
        messages_json=_json(body.messages, "messages"),
        add_generation_prompt=not continue_final if add_prompt is None else add_prompt,
        continue_final_message=continue_final,
        template_kwargs_json=_json(kwargs, "chat_template_kwargs") if kwargs else "",
        documents_json=_json(body.documents, "documents") if body.documents else "",
        chat_template=body.chat_template,
    )


def _json(value: Any, field: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise bad_request(f"{field}: the value is nested too deeply", field) from None
