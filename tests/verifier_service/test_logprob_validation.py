from __future__ import annotations

from dataclasses import replace

import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.verifier_service.test_validation import LIMITS
from verifier_service.messages import Sampling
from verifier_service.request_error import RequestError
from verifier_service.validation import Limits, complete, parameters

FIELDS = ("logprobs", "prompt_logprobs")


def sampling(limits: Limits = LIMITS, **fields: int) -> Sampling:
    request = pb.GenerateRequest(sampling=pb.SamplingParams(**fields))
    checked = parameters(request, limits, ())
    return complete(checked, [1, 2], limits, prompt_field="prompt").sampling


def test_unset_means_none_are_told_and_zero_means_the_tokens_own() -> None:
    assert (sampling().logprobs, sampling().prompt_logprobs) == (-1, -1)
    for field in FIELDS:
        for value in (0, 1, 20):
            assert getattr(sampling(**{field: value}), field) == value


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [-2, 21, 2**31 - 1])
def test_more_than_the_verifier_allows_is_refused(field: str, value: int) -> None:
    with pytest.raises(RequestError) as caught:
        sampling(**{field: value})
    assert caught.value.field == field
    assert caught.value.message == (
        f"{field} {value} is not allowed: it must be from 0 to 20, this verifier's max_logprobs"
    )


@pytest.mark.parametrize("field", FIELDS)
def test_the_whole_vocabulary_counts_as_its_size(field: str) -> None:
    size = LIMITS.vocab_size
    for most in (-1, size, size + 1):
        limits = replace(LIMITS, max_logprobs=most)
        assert getattr(sampling(limits, **{field: -1}), field) == size
    with pytest.raises(RequestError, match=rf"{field} -1 \(the whole vocabulary of {size}\)"):
        sampling(replace(LIMITS, max_logprobs=size - 1), **{field: -1})


def test_without_a_cap_the_vocabulary_is_the_limit() -> None:
    limits = replace(LIMITS, max_logprobs=-1)
    assert sampling(limits, logprobs=LIMITS.vocab_size).logprobs == LIMITS.vocab_size
    with pytest.raises(RequestError, match="or -1 for the whole vocabulary"):
        sampling(limits, logprobs=LIMITS.vocab_size + 1)
