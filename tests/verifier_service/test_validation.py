from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb

from verifier_service.field_checks import check_token_ids
from verifier_service.request_error import MAX_MESSAGE_CHARACTERS, RequestError
from verifier_service.sampling_rules import SamplingRules
from verifier_service.speculation_rules import SpeculationRules
from verifier_service.target_facts import SamplingDefaults
from verifier_service.validation import Limits, Parameters, complete, parameters

LIMITS = Limits(
    served_model_name="toy",
    vocab_size=100,
    max_model_len=50,
    eos_token_ids=(1, 2),
    num_speculative_tokens=4,
    defaults=SamplingDefaults(),
)


def checked(limits: Limits = LIMITS, /, **sampling: Any) -> Parameters:
    request = pb.GenerateRequest(sampling=pb.SamplingParams(**sampling))
    return parameters(request, limits, ("ngram",))


def refused(message: str, field: str, **sampling: Any) -> None:
    with pytest.raises(RequestError) as caught:
        checked(**sampling)
    assert (caught.value.message, caught.value.field) == (message, field)
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT


def test_nothing_set_takes_the_neutral_values() -> None:
    p = checked()
    assert (p.temperature, p.top_k, p.top_p, p.max_tokens) == (1.0, 0, 1.0, None)
    assert p.stop_token_ids == {1, 2}
    assert p.skip_special_tokens and p.detokenize and not p.include_stop
    assert p.speculation == SpeculationRules(None, "", predicts=False)
    assert p.request_id.startswith("gen-")


def test_nothing_set_takes_the_models_defaults_first() -> None:
    limits = replace(
        LIMITS, defaults=SamplingDefaults(temperature=0.5, top_p=0.25, top_k=9, max_tokens=12)
    )
    p = checked(limits)
    assert (p.temperature, p.top_k, p.top_p) == (0.5, 9, 0.25)
    assert complete(p, [5] * 10, limits, prompt_field="prompt").sampling.max_tokens == 12
    # A default never makes a request fail that fits without it.
    assert complete(p, [5] * 45, limits, prompt_field="prompt").sampling.max_tokens == 5
    explicit = checked(limits, temperature=0, top_k=0, top_p=1)
    assert (explicit.temperature, explicit.top_k, explicit.top_p) == (0.0, 0, 1.0)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [(3.0, "3"), (2.1, "2.1"), (-0.5, "-0.5"), (math.nan, "nan"), (math.inf, "inf")],
)
def test_temperature_is_from_0_to_2(sent: float, shown: str) -> None:
    refused(
        f"temperature {shown} is not allowed: it must be from 0 to 2",
        "temperature",
        temperature=sent,
    )


@pytest.mark.parametrize("sent", [0.0, 2.0])
def test_the_ends_of_the_temperature_range_are_allowed(sent: float) -> None:
    assert checked(temperature=sent).temperature == sent


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert checked(temperature=1e-6).temperature == 0.0
    assert checked(temperature=1e-4).temperature > 0.0


@pytest.mark.parametrize(("sent", "shown"), [(0.0, "0"), (1.5, "1.5"), (math.nan, "nan")])
def test_top_p_is_above_0_and_at_most_1(sent: float, shown: str) -> None:
    refused(f"top_p {shown} is not allowed: it must be above 0 and at most 1", "top_p", top_p=sent)


@pytest.mark.parametrize(("sent", "taken"), [(-1, 0), (0, 0), (1, 1), (99, 99), (100, 0), (500, 0)])
def test_top_k_without_effect_is_no_limit(sent: int, taken: int) -> None:
    assert checked(top_k=sent).top_k == taken


def test_top_k_below_minus_1_is_refused() -> None:
    refused(
        "top_k -2 is not allowed: it must be at least 1, or 0 or -1 for no limit",
        "top_k",
        top_k=-2,
    )


def test_max_tokens_0_is_refused() -> None:
    refused("max_tokens 0 is not allowed: it must be at least 1", "max_tokens", max_tokens=0)


def test_a_prompt_and_its_answer_must_fit_the_context() -> None:
    p = checked(max_tokens=40)
    assert complete(p, [5] * 10, LIMITS, prompt_field="prompt").sampling.max_tokens == 40
    with pytest.raises(RequestError) as caught:
        complete(p, [5] * 11, LIMITS, prompt_field="messages")
    assert caught.value.message == (
        "maximum context length is 50 tokens, requested 51 "
        "(11 in the messages, 40 in the completion)"
    )
    assert caught.value.metadata() == (
        ("outrider-field", "max_tokens"),
        ("outrider-code", "context_length_exceeded"),
    )


@pytest.mark.parametrize("max_tokens", [None, 1, 9])
def test_a_prompt_that_leaves_no_room_is_the_prompts_fault(max_tokens: int | None) -> None:
    p = checked(max_tokens=max_tokens)
    with pytest.raises(RequestError, match="maximum context length is 50") as caught:
        complete(p, [5] * 50, LIMITS, prompt_field="messages")
    assert caught.value.field == "messages"


def test_unset_max_tokens_is_the_rest_of_the_context() -> None:
    assert complete(checked(), [5] * 49, LIMITS, prompt_field="prompt").sampling.max_tokens == 1


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="prompt is empty") as caught:
        complete(checked(), [], LIMITS, prompt_field="prompt")
    assert caught.value.field == "prompt"


@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(bad: int) -> None:
    with pytest.raises(RequestError) as caught:
        complete(checked(), [0, 99, bad, 3], LIMITS, prompt_field="prompt")
    assert caught.value.message == f"prompt[2] {bad} is not a token id: ids are from 0 to 99"


def test_no_ids_are_no_bad_ids() -> None:
    check_token_ids([], 100, "prompt")


def test_seventeen_stop_strings_are_too_many() -> None:
    assert len(checked(stop=["x"] * 16).stop) == 16
    refused("stop with 17 strings is not allowed: at most 16 are", "stop", stop=["x"] * 17)


def test_an_empty_stop_string_is_refused() -> None:
    refused("stop[1] '' is not allowed: it must not be empty", "stop", stop=["a", ""])


def test_a_huge_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match=r"stop\[0\] of 5000 characters"):
        checked(stop=["x" * 5000])


def test_stop_token_ids_join_the_models_own() -> None:
    assert checked(stop_token_ids=[7]).stop_token_ids == {1, 2, 7}
    assert checked(stop_token_ids=[7], ignore_eos=True).stop_token_ids == {7}
    with pytest.raises(RequestError, match=r"stop_token_ids\[0\] 100") as caught:
        checked(stop_token_ids=[100])
    assert caught.value.field == "stop_token_ids"


@pytest.mark.parametrize("seed", [0, -(2**63), 2**63 - 1])
def test_any_signed_64_bit_seed_is_kept(seed: int) -> None:
    assert checked(seed=seed).seed == seed


def test_drawn_seeds_differ_and_survive_json() -> None:
    seeds = {checked().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_every_sampling_field_reaches_the_core_or_the_answer() -> None:
    """A field that somebody adds to the schema must not be ignored here."""
    checked_here = {
        "temperature", "top_p", "top_k", "seed", "max_tokens", "stop", "stop_token_ids",
        "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "logprobs",
        "prompt_logprobs",
    }  # fmt: skip
    rules = {field.name for field in fields(SamplingRules)}
    known = {field.name for field in pb.SamplingParams.DESCRIPTOR.fields}
    assert known == checked_here | rules


def test_another_model_is_not_found() -> None:
    assert parameters(pb.GenerateRequest(model="toy"), LIMITS, ()).request_id
    with pytest.raises(RequestError, match="model 'gpt' is not served here") as caught:
        parameters(pb.GenerateRequest(model="gpt"), LIMITS, ())
    assert caught.value.status is grpc.StatusCode.NOT_FOUND
    assert caught.value.field == "model"


def test_flags_priority_and_salt_pass_through() -> None:
    request = pb.GenerateRequest(
        request_id="mine",
        detokenize=False,
        detailed_acceptance=True,
        include_rounds=True,
        priority=-3,
        cache_salt="tenant",
        sampling=pb.SamplingParams(
            include_stop_str_in_output=True, skip_special_tokens=False, stop=["a"]
        ),
    )
    p = parameters(request, LIMITS, ())
    assert not p.detokenize and not p.skip_special_tokens
    assert p.detailed and p.include_rounds and p.include_stop
    core_request = complete(p, [3], LIMITS, prompt_field="prompt")
    assert (core_request.request_id, core_request.priority) == ("mine", -3)
    assert core_request.cache_salt == "tenant"


@pytest.mark.parametrize("field", ["request_id", "cache_salt"])
def test_long_names_are_refused(field: str) -> None:
    with pytest.raises(RequestError, match="at most 256"):
        parameters(pb.GenerateRequest(**{field: "x" * 257}), LIMITS, ())  # type: ignore[arg-type]


def test_no_message_is_too_long_for_a_header() -> None:
    assert len(RequestError("x" * 100_000).message) == MAX_MESSAGE_CHARACTERS
