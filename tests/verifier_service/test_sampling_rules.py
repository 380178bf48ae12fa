"""Ranges of the sampling fields, and rules that exclude one another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.verifier_service.test_validation import LIMITS, checked
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.bad_words import bad_word_ids
from verifier_service.messages import Sampling
from verifier_service.request_error import RequestError
from verifier_service.sampling_rules import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS
from verifier_service.target_facts import SamplingDefaults
from verifier_service.text import Text
from verifier_service.validation import Limits, complete


def sampling_of(
    limits: Limits = LIMITS, /, bad_words: tuple[tuple[int, ...], ...] = (), **fields: Any
) -> Sampling:
    parameters = checked(limits, **fields)
    return complete(parameters, [5, 6], limits, prompt_field="prompt", bad_words=bad_words).sampling


@pytest.mark.parametrize(
    ("field", "ends", "outside", "allowed"),
    [
        ("min_p", (0.0, 1.0), (-0.1, 1.5, math.nan), "it must be from 0 to 1"),
        ("presence_penalty", (-2.0, 2.0), (-2.5, 2.5, math.nan), "it must be from -2 to 2"),
        ("frequency_penalty", (-2.0, 2.0), (-3.0, math.inf), "it must be from -2 to 2"),
        ("repetition_penalty", (0.01, 1e6), (0.0, -1.0, math.nan, math.inf), "it must be above 0"),
    ],
)
def test_ranges_are_vllms(
    field: str, ends: tuple[float, ...], outside: tuple[float, ...], allowed: str
) -> None:
    for value in ends:
        assert getattr(sampling_of(**{field: value}), field) == pytest.approx(value)
    for value in outside:
        with pytest.raises(RequestError) as caught:
            checked(LIMITS, **{field: value})
        assert caught.value.message == f"{field} {value:g} is not allowed: {allowed}"
        assert caught.value.field == field


def test_nothing_set_asks_for_nothing() -> None:
    assert sampling_of(seed=0, max_tokens=16) == Sampling(stop_token_ids=frozenset({1, 2}))


def test_the_models_defaults_apply_where_a_field_is_unset() -> None:
    limits = replace(LIMITS, defaults=SamplingDefaults(min_p=0.25, repetition_penalty=1.5))
    unset = sampling_of(limits)
    assert (unset.min_p, unset.repetition_penalty) == (0.25, 1.5)
    explicit = sampling_of(limits, min_p=0, repetition_penalty=1)
    assert (explicit.min_p, explicit.repetition_penalty) == (0.0, 1.0)


def test_logit_bias_is_clamped_as_by_vllm() -> None:
    bias = {3: 150.0, 2: -1e30, 99: 0.5, 7: 0.0}
    assert sampling_of(logit_bias=bias).logit_bias == ((2, -100.0), (3, 100.0), (99, 0.5))


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        ({100: 1.0}, "logit_bias[100] 1 is not allowed: token ids are from 0 to 99"),
        ({-1: 1.0}, "logit_bias[-1] 1 is not allowed: token ids are from 0 to 99"),
        ({4: math.nan}, "logit_bias[4] nan is not allowed: it must be from -100 to 100"),
    ],
)
def test_logit_bias_is_of_the_vocabulary(bias: dict[int, float], says: str) -> None:
    with pytest.raises(RequestError) as caught:
        checked(LIMITS, logit_bias=bias)
    assert (caught.value.message, caught.value.field) == (says, "logit_bias")


def test_allowed_ids_are_of_the_vocabulary() -> None:
    assert sampling_of(allowed_token_ids=[9, 3, 9]).allowed_token_ids == (3, 9)
    with pytest.raises(RequestError, match=r"allowed_token_ids\[1\] 100 is not a token id"):
        checked(LIMITS, allowed_token_ids=[1, 100])


def test_bad_words_are_bounded() -> None:
    assert len(checked(bad_words=["x"] * MAX_BAD_WORDS).rules.bad_words) == MAX_BAD_WORDS
    for words, says in (
        (["x"] * (MAX_BAD_WORDS + 1), "with 1025 strings"),
        (["a", ""], r"bad_words\[1\] '' is not allowed: it must not be empty"),
        (["x" * (MAX_BAD_WORD_CHARACTERS + 1)], r"bad_words\[0\] of 257 characters"),
    ):
        with pytest.raises(RequestError, match=says) as caught:
            checked(bad_words=words)
        assert caught.value.field == "bad_words"


def test_min_tokens_fit_max_tokens() -> None:
    assert sampling_of(min_tokens=7, max_tokens=7).min_tokens == 7
    with pytest.raises(RequestError) as caught:
        sampling_of(min_tokens=8, max_tokens=7)
    assert caught.value.message == (
        "min_tokens 8 is not allowed: it must be at most max_tokens, which is 7 here"
    )
    # The rest of the context is what max_tokens is where it is unset.
    assert sampling_of(min_tokens=48).max_tokens == 48
    with pytest.raises(RequestError, match="which is 48 here"):
        sampling_of(min_tokens=49)


def test_rules_that_leave_nothing_are_refused_before_they_run() -> None:
    with pytest.raises(RequestError, match="bad_words and min_tokens exclude all") as caught:
        sampling_of(bad_words=((3,), (4,)), allowed_token_ids=[3, 4])
    assert caught.value.field == "allowed_token_ids"
    with pytest.raises(RequestError, match="allowed_token_ids of 3 ids"):
        sampling_of(bad_words=((3,),), allowed_token_ids=[1, 2, 3], min_tokens=1)
    # Longer words leave a way out, stop ids are allowed where none need be waited for.
    sampling_of(bad_words=((3, 4), (4, 3)), allowed_token_ids=[3, 4])
    sampling_of(allowed_token_ids=[1, 2])


def test_a_word_that_needs_an_id_outside_the_model_is_never_said() -> None:
    words = ((5, 6), (7, 100), (101,))
    assert sampling_of(bad_words=words).bad_words == ((5, 6),)


def test_bad_words_are_spelled_with_and_without_a_space() -> None:
    text = Text(byte_level_tokenizer())

    def ids(spelling: str) -> tuple[int, ...]:
        return tuple(text.encode(spelling, add_special_tokens=False))

    assert set(bad_word_ids(text, ["cat"])) == {ids("cat"), ids(" cat")}
    # A space of the word's own is no other word.
    assert set(bad_word_ids(text, [" cat", "cat"])) == {ids("cat"), ids(" cat")}
    assert bad_word_ids(text, ["\n"]) == (ids("\n"),)
    assert ids("cat") != ids(" cat")
