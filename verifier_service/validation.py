"""Turns a GenerateRequest into a core Request, or says what is wrong with it.

Knows every field's limits and the model's; knows no tokenizer, transport or engine. `parameters`
checks all that can be checked before the prompt is tokenized, `complete` the rest.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Collection
from dataclasses import dataclass

import grpc
from speculation.v1 import verifier_pb2

from outrider.workload import ALLOWED, is_workload
from verifier_service.field_checks import check_token_ids, optional, refused, shown
from verifier_service.messages import Request, Sampling
from verifier_service.request_error import CONTEXT_LENGTH_EXCEEDED, RequestError, shorten
from verifier_service.sampling_rules import (
    SamplingRules,
    check_min_tokens,
    check_something_is_allowed,
    sampling_rules,
)
from verifier_service.speculation_rules import SpeculationRules, speculation_rules
from verifier_service.target_facts import SamplingDefaults

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 4096
MAX_NAME_CHARACTERS = 256
# Below this the softmax is the argmax to float32, and dividing by it overflows.
GREEDY_BELOW = 1e-5
# JSON readers keep integers exactly to this width; a drawn seed should survive them.
_SEED_BITS = 53


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests are checked against; `num_speculative_tokens` is the ceiling K.

    `num_prediction_tokens` is the ceiling of requests with a prediction where K is 0.
    `max_logprobs` is how many top log-probabilities a request may ask for, -1 for any number.
    """

    served_model_name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    num_speculative_tokens: int
    defaults: SamplingDefaults
    max_logprobs: int = 20
    num_prediction_tokens: int = 0

    def ceiling(self, predicts: bool) -> int:
        """Most drafts of a round of a request with or without a prediction."""
        own = self.num_prediction_tokens if predicts else 0
        return self.num_speculative_tokens or own


@dataclass(frozen=True, slots=True)
class Parameters:
    """A checked request but for its prompt; `max_tokens` None takes the default."""

    request_id: str
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int | None
    stop_token_ids: frozenset[int]
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    detokenize: bool
    detailed: bool
    include_rounds: bool
    stream_interval: int
    speculation: SpeculationRules
    priority: int
    cache_salt: str
    logprobs: int
    prompt_logprobs: int
    rules: SamplingRules


def parameters(
    request: verifier_pb2.GenerateRequest, limits: Limits, proposers: Collection[str]
) -> Parameters:
    """Check everything but the prompt. `proposers` are the attached ones' names.

    An empty name among them is one that has not connected yet: then any name may be its.
    Raises RequestError naming the field, its value and what is allowed.
    """
    sampling = request.sampling
    _check_model(request.model, limits)
    max_tokens = optional(sampling, "max_tokens", None)
    if max_tokens is not None and max_tokens < 1:
        raise refused("max_tokens", max_tokens, "it must be at least 1")
    if not is_workload(request.workload):
        raise refused("workload", repr(shorten(request.workload, 80)), f"allowed are {ALLOWED}")
    return Parameters(
        request_id=_name("request_id", request.request_id) or f"gen-{uuid.uuid4().hex}",
        temperature=_temperature(sampling, limits),
        top_k=_top_k(sampling, limits),
        top_p=_top_p(sampling, limits),
        seed=sampling.seed if sampling.HasField("seed") else secrets.randbits(_SEED_BITS),
        max_tokens=max_tokens,
        stop_token_ids=_stop_token_ids(sampling, limits),
        stop=_stop(sampling),
        include_stop=sampling.include_stop_str_in_output,
        skip_special_tokens=bool(optional(sampling, "skip_special_tokens", True)),
        detokenize=bool(optional(request, "detokenize", True)),
        detailed=request.detailed_acceptance,
        include_rounds=request.include_rounds,
        stream_interval=request.stream_interval,
        speculation=speculation_rules(
            request,
            proposers,
            num_speculative_tokens=limits.num_speculative_tokens,
            num_prediction_tokens=limits.ceiling(predicts=True),
        ),
        priority=request.priority,
        cache_salt=_name("cache_salt", request.cache_salt),
        logprobs=_logprobs("logprobs", sampling, limits),
        prompt_logprobs=_logprobs("prompt_logprobs", sampling, limits),
        rules=sampling_rules(sampling, limits.vocab_size, limits.defaults),
    )


def complete(
    checked: Parameters,
    prompt_ids: list[int],
    limits: Limits,
    *,
    prompt_field: str,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> Request:
    """The core's request. `prompt_field` is the OpenAI name of the prompt: prompt or messages.

    `bad_words` are the token sequences of the checked words. Raises RequestError where the prompt
    is empty, has an id outside the vocabulary, or does not fit the context together with
    `max_tokens`, and where the request's rules exclude one another.
    """
    if not prompt_ids:
        raise RequestError(
            f"{prompt_field} is empty: at least one token is needed", field=prompt_field
        )
    check_token_ids(prompt_ids, limits.vocab_size, prompt_field)
    max_tokens = _fit(checked.max_tokens, len(prompt_ids), limits, prompt_field)
    rules = checked.rules
    check_min_tokens(rules.min_tokens, max_tokens)
    # An id that the model cannot choose is never said, nor is a word that needs it.
    bad_words = tuple(word for word in bad_words if max(word) < limits.vocab_size)
    check_something_is_allowed(rules, bad_words, checked.stop_token_ids)
    return Request(
        request_id=checked.request_id,
        prompt_ids=prompt_ids,
        sampling=Sampling(
            temperature=checked.temperature,
            top_k=checked.top_k,
            top_p=checked.top_p,
            seed=checked.seed,
            max_tokens=max_tokens,
            stop_token_ids=checked.stop_token_ids,
            min_p=rules.min_p,
            presence_penalty=rules.presence_penalty,
            frequency_penalty=rules.frequency_penalty,
            repetition_penalty=rules.repetition_penalty,
            logit_bias=rules.logit_bias,
            bad_words=bad_words,
            allowed_token_ids=rules.allowed_token_ids,
            min_tokens=rules.min_tokens,
            logprobs=checked.logprobs,
            prompt_logprobs=checked.prompt_logprobs,
        ),
        num_speculative_tokens=checked.speculation.num_speculative_tokens,
        proposer=checked.speculation.proposer,
        priority=checked.priority,
        cache_salt=checked.cache_salt,
    )


def _fit(max_tokens: int | None, prompt_tokens: int, limits: Limits, prompt_field: str) -> int:
    room = limits.max_model_len - prompt_tokens
    if max_tokens is None and room >= 1:
        return min(room, limits.defaults.max_tokens or room)
    if max_tokens is not None and max_tokens <= room:
        return max_tokens
    wanted = max_tokens or 1
    raise RequestError(
        f"maximum context length is {limits.max_model_len} tokens, requested "
        f"{prompt_tokens + wanted} ({prompt_tokens} in the {prompt_field}, "
        f"{wanted} in the completion)",
        field="max_tokens" if room >= 1 else prompt_field,
        code=CONTEXT_LENGTH_EXCEEDED,
    )


def _check_model(model: str, limits: Limits) -> None:
    if model and model != limits.served_model_name:
        raise RequestError(
            f"model {shorten(model)!r} is not served here; "
            f"the model is {limits.served_model_name!r}",
            field="model",
            status=grpc.StatusCode.NOT_FOUND,
        )


def _temperature(sampling: verifier_pb2.SamplingParams, limits: Limits) -> float:
    value = float(optional(sampling, "temperature", limits.defaults.temperature))
    if not 0.0 <= value <= 2.0:
        raise refused("temperature", shown(value), "it must be from 0 to 2")
    return value if value >= GREEDY_BELOW else 0.0


def _top_p(sampling: verifier_pb2.SamplingParams, limits: Limits) -> float:
    value = float(optional(sampling, "top_p", limits.defaults.top_p))
    if not 0.0 < value <= 1.0:
        raise refused("top_p", shown(value), "it must be above 0 and at most 1")
    return value


def _top_k(sampling: verifier_pb2.SamplingParams, limits: Limits) -> int:
    value = int(optional(sampling, "top_k", limits.defaults.top_k))
    if value < -1:
        raise refused("top_k", value, "it must be at least 1, or 0 or -1 for no limit")
    return 0 if value >= limits.vocab_size else max(value, 0)


def _logprobs(name: str, sampling: verifier_pb2.SamplingParams, limits: Limits) -> int:
    """Top tokens told at each position; -1 where the field is unset and none are."""
    if not sampling.HasField(name):
        return -1
    value = int(getattr(sampling, name))
    most = limits.max_logprobs if limits.max_logprobs >= 0 else limits.vocab_size
    wanted = limits.vocab_size if value == -1 else value
    if value < -1 or wanted > most:
        whole = f" (the whole vocabulary of {wanted})" if value == -1 else ""
        raise refused(
            name,
            f"{value}{whole}",
            f"it must be from 0 to {most}, this verifier's max_logprobs"
            if most < limits.vocab_size
            else f"it must be from 0 to {most}, or -1 for the whole vocabulary",
        )
    return wanted


def _stop(sampling: verifier_pb2.SamplingParams) -> tuple[str, ...]:
    stop = tuple(sampling.stop)
    if len(stop) > MAX_STOP_STRINGS:
        raise refused("stop", f"with {len(stop)} strings", f"at most {MAX_STOP_STRINGS} are")
    for index, text in enumerate(stop):
        if not text:
            raise refused(f"stop[{index}]", "''", "it must not be empty", field="stop")
        if len(text) > MAX_STOP_CHARACTERS:
            raise refused(
                f"stop[{index}]",
                f"of {len(text)} characters",
                f"it must have at most {MAX_STOP_CHARACTERS}",
                field="stop",
            )
    return stop


def _stop_token_ids(sampling: verifier_pb2.SamplingParams, limits: Limits) -> frozenset[int]:
    ids = list(sampling.stop_token_ids)
    check_token_ids(ids, limits.vocab_size, "stop_token_ids")
    return frozenset(ids if sampling.ignore_eos else (*ids, *limits.eos_token_ids))


def _name(field: str, value: str) -> str:
    if len(value) > MAX_NAME_CHARACTERS:
        raise refused(
            field, f"of {len(value)} characters", f"it must have at most {MAX_NAME_CHARACTERS}"
        )
    return value
