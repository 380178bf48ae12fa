"""From what `generate` and `chat` were given to the verifier's requests.

Knows the forms of prompts and chats and vLLM's names for them; knows no tokenizer and no engine.
What depends on the model is checked by the verifier. Light: imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from speculation.v1 import verifier_pb2 as pb

from gateway.bodies import SpeculativeDecoding
from gateway.prompts import check_messages
from outrider.config import describe_validation, nearest, shorten
from outrider.sampling_params import SamplingParams

_MAX_TOKEN_ID = 2**31 - 1
_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a text, token ids, or a chat; `where` is what errors call it."""

    where: str
    text: str | None = None
    token_ids: Sequence[int] = ()
    chat: pb.ChatMessages | None = None
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and how it is answered; `request` has all but prompt, id and choice's seed."""

    prompt: Prompt
    params: SamplingParams
    seed: int
    request: pb.GenerateRequest


def read_prompts(prompts: Any) -> list[Prompt]:
    """`generate`'s prompts: one or a list of texts, lists of token ids, and dicts.

    Raises ValueError naming the prompt at fault.
    """
    single = isinstance(prompts, str | Mapping) or (
        isinstance(prompts, Sequence) and bool(prompts) and all(type(i) is int for i in prompts)
    )
    if single:
        return [_read_prompt(prompts, "prompts")]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise ValueError(
            f"prompts: {shorten(repr(prompts))} is not allowed; must be a text, token ids, a dict "
            "of one of them, or a list of such"
        )
    return [_read_prompt(prompt, f"prompts[{index}]") for index, prompt in enumerate(prompts)]


def read_chats(
    messages: Any,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    chat_template: str | None,
    chat_template_kwargs: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[Prompt]:
    """`chat`'s conversations: one list of messages, or a list of such lists.

    Raises ValueError naming the message at fault.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ValueError(
            f"messages: {shorten(repr(messages))} is not allowed; must be a list of messages, or "
            "a list of such lists"
        )
    many = all(isinstance(item, list | tuple) for item in messages)
    chats = (
        {f"messages[{i}]": chat for i, chat in enumerate(messages)}
        if many
        else {"messages": messages}
    )
    prompts = []
    for where, chat in chats.items():
        try:
            checked = check_messages(list(chat))
        except PydanticCustomError as error:
            raise ValueError(f"{where}{error}") from None
        prompts.append(
            Prompt(
                where,
                chat=pb.ChatMessages(
                    messages_json=_json(checked, where),
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tools_json=_json(list(tools), "tools") if tools else "",
                    template_kwargs_json=(
                        _json(dict(chat_template_kwargs), "chat_template_kwargs")
                        if chat_template_kwargs
                        else ""
                    ),
                    chat_template=chat_template or "",
                ),
            )
        )
    return prompts


def make_jobs(
    prompts: Sequence[Prompt],
    sampling_params: SamplingParams | Sequence[SamplingParams],
    *,
    speculative_decoding: Mapping[str, Any] | None,
    priority: Sequence[int] | None,
    detailed: bool,
    draw_seed: Callable[[], int],
) -> list[Job]:
    """One job for each prompt; prompts whose params have no seed draw one, in order.

    Raises ValueError naming the field at fault.
    """
    params = _for_each(sampling_params, len(prompts))
    speculation = _speculation(speculative_decoding)
    if priority is not None and len(priority) != len(prompts):
        raise ValueError(f"priority: {len(priority)} numbers for {len(prompts)} prompts")
    jobs = []
    for index, (prompt, asked) in enumerate(zip(prompts, params, strict=True)):
        checked = asked.checked()
        request = pb.GenerateRequest(
            sampling=_sampling(checked),
            detokenize=checked.detokenize,
            detailed_acceptance=detailed,
            priority=priority[index] if priority is not None else 0,
            cache_salt=prompt.cache_salt,
            speculation=speculation,
            structured=checked.structure,
        )
        if checked.structured_outputs is not None:
            request.structured.parameter = "structured_outputs"
        seed = checked.seed if checked.seed is not None else draw_seed()
        jobs.append(Job(prompt, checked, seed, request))
    return jobs


def _read_prompt(prompt: Any, where: str) -> Prompt:
    if not isinstance(prompt, Mapping):
        return _plain(prompt, where)
    for key in prompt:
        if key not in _PROMPT_KEYS:
            raise ValueError(
                f"{where}: key {key!r} is not supported{nearest(str(key), _PROMPT_KEYS)}"
            )
    salt = prompt.get("cache_salt") or ""
    if not isinstance(salt, str):
        raise ValueError(f"{where}: cache_salt: {shorten(repr(salt))} is not a string")
    # With ids the text is only what they came from, as in vLLM.
    key = "prompt_token_ids" if prompt.get("prompt_token_ids") is not None else "prompt"
    if prompt.get(key) is None:
        raise ValueError(f"{where}: has neither prompt nor prompt_token_ids")
    plain = _plain(prompt[key], f"{where}: {key}")
    return Prompt(where, plain.text, plain.token_ids, cache_salt=salt)


def _plain(prompt: Any, where: str) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(where, prompt)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise ValueError(
            f"{where}: {shorten(repr(prompt))} is not allowed; must be a text or a list of token "
            "ids"
        )
    for index, item in enumerate(prompt):
        if type(item) is not int or not 0 <= item <= _MAX_TOKEN_ID:
            raise ValueError(
                f"{where}[{index}]: {shorten(repr(item))} is not allowed; must be a token id, an "
                f"integer from 0 to {_MAX_TOKEN_ID}"
            )
    return Prompt(where, token_ids=list(prompt))


def _for_each(
    sampling_params: SamplingParams | Sequence[SamplingParams], count: int
) -> Sequence[SamplingParams]:
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    if not isinstance(sampling_params, Sequence):
        raise ValueError(
            f"sampling_params: {shorten(repr(sampling_params))} is not allowed; must be a "
            "SamplingParams or a list of them"
        )
    if len(sampling_params) != count:
        raise ValueError(f"sampling_params: {len(sampling_params)} of them for {count} prompts")
    for index, item in enumerate(sampling_params):
        if not isinstance(item, SamplingParams):
            raise ValueError(
                f"sampling_params[{index}]: {shorten(repr(item))} is not a SamplingParams"
            )
    return sampling_params


def _sampling(params: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        stop=params.stops,
        stop_token_ids=params.stop_token_ids or (),
        ignore_eos=params.ignore_eos,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias or {},
        bad_words=params.bad_words or (),
        allowed_token_ids=params.allowed_token_ids or (),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
    )


def _speculation(asked: Mapping[str, Any] | None) -> pb.SpeculationParams | None:
    if asked is None:
        return None
    name = "speculative_decoding"
    if not isinstance(asked, Mapping):
        raise ValueError(f"{name}: {shorten(repr(asked))} is not a dict")
    try:
        fields = SpeculativeDecoding.model_validate(dict(asked))
    except ValidationError as error:
        raise ValueError(describe_validation(error, name)) from None
    return pb.SpeculationParams(
        enabled=fields.enabled,
        num_speculative_tokens=fields.num_speculative_tokens,
        proposer=fields.proposer,
    )


def _json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON: {error}") from None
