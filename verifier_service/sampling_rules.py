"""What a request may ask of each token beside temperature and filters, with its limits.

Knows the fields from min_p to allowed_token_ids; knows no tokenizer: bad words are still text here.
Limits are vLLM's; what vLLM leaves unbounded is bounded where a round's cost depends on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from speculation.v1 import verifier_pb2

from verifier_service.field_checks import check_token_ids, optional, refused, shown
from verifier_service.target_facts import SamplingDefaults

MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARACTERS = 256
# vLLM clamps to this range, as clients of OpenAI's API expect.
MAX_LOGIT_BIAS = 100.0


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """Checked fields of `messages.Sampling` of the same names; `bad_words` as the client wrote."""

    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0


def sampling_rules(
    sampling: verifier_pb2.SamplingParams, vocab_size: int, defaults: SamplingDefaults
) -> SamplingRules:
    """The rules of one request. Raises RequestError naming the field at fault."""
    return SamplingRules(
        min_p=_between("min_p", optional(sampling, "min_p", defaults.min_p), 0, 1),
        presence_penalty=_between("presence_penalty", sampling.presence_penalty, -2, 2),
        frequency_penalty=_between("frequency_penalty", sampling.frequency_penalty, -2, 2),
        repetition_penalty=_repetition_penalty(
            optional(sampling, "repetition_penalty", defaults.repetition_penalty)
        ),
        logit_bias=_logit_bias(sampling, vocab_size),
        bad_words=_bad_words(sampling),
        allowed_token_ids=_allowed_token_ids(sampling, vocab_size),
        min_tokens=sampling.min_tokens,
    )


def check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    """Raises RequestError where an answer could not be as long as it must be."""
    if min_tokens > max_tokens:
        raise refused(
            "min_tokens", min_tokens, f"it must be at most max_tokens, which is {max_tokens} here"
        )


def check_something_is_allowed(
    rules: SamplingRules, bad_words: tuple[tuple[int, ...], ...], stop_token_ids: frozenset[int]
) -> None:
    """Raises RequestError where allowed_token_ids leave nothing for the first token."""
    if not rules.allowed_token_ids:
        return
    refused_ids = {word[0] for word in bad_words if len(word) == 1}
    if rules.min_tokens > 0:
        refused_ids |= stop_token_ids
    if refused_ids.issuperset(rules.allowed_token_ids):
        raise refused(
            "allowed_token_ids",
            f"of {len(rules.allowed_token_ids)} ids",
            "bad_words and min_tokens exclude all of them",
        )


def _between(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise refused(name, shown(value), f"it must be from {low} to {high}")
    return float(value)


def _repetition_penalty(value: float) -> float:
    if not 0.0 < value < math.inf:
        raise refused("repetition_penalty", shown(value), "it must be above 0")
    return float(value)


def _logit_bias(
    sampling: verifier_pb2.SamplingParams, vocab_size: int
) -> tuple[tuple[int, float], ...]:
    bias = sorted(sampling.logit_bias.items())
    for token, value in bias:
        if not 0 <= token < vocab_size:
            raise refused(
                f"logit_bias[{token}]",
                shown(value),
                f"token ids are from 0 to {vocab_size - 1}",
                field="logit_bias",
            )
        if math.isnan(value):
            raise refused(
                f"logit_bias[{token}]", "nan", "it must be from -100 to 100", field="logit_bias"
            )
    return tuple(
        (token, max(-MAX_LOGIT_BIAS, min(value, MAX_LOGIT_BIAS))) for token, value in bias if value
    )


def _bad_words(sampling: verifier_pb2.SamplingParams) -> tuple[str, ...]:
    words = tuple(sampling.bad_words)
    if len(words) > MAX_BAD_WORDS:
        raise refused("bad_words", f"with {len(words)} strings", f"at most {MAX_BAD_WORDS} are")
    for index, word in enumerate(words):
        name = f"bad_words[{index}]"
        if not word:
            raise refused(name, "''", "it must not be empty", field="bad_words")
        if len(word) > MAX_BAD_WORD_CHARACTERS:
            raise refused(
                name,
                f"of {len(word)} characters",
                f"it must have at most {MAX_BAD_WORD_CHARACTERS}",
                field="bad_words",
            )
    return words


def _allowed_token_ids(sampling: verifier_pb2.SamplingParams, vocab_size: int) -> tuple[int, ...]:
    ids = list(sampling.allowed_token_ids)
    check_token_ids(ids, vocab_size, "allowed_token_ids")
    return tuple(sorted(set(ids)))
