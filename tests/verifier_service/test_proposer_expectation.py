"""A proposer that is not what the verifier was told of is refused, in words."""

from __future__ import annotations

import pytest
from speculation.v1 import proposer_pb2

from verifier_service.proposer_expectation import ExpectedProposer
from verifier_service.proposer_handshake import HandshakeError, HelloParameters

HELLO = HelloParameters(
    verifier_instance_id="v",
    vocabulary_fingerprint="f",
    vocabulary_size=10,
    eos_token_ids=(1,),
    max_sequences=4,
    num_speculative_tokens=8,
    context_limit=100,
)


def capabilities(**fields: object) -> proposer_pb2.Capabilities:
    return proposer_pb2.Capabilities(**{"name": "n", "method": "ngram"} | fields)  # type: ignore[arg-type]


def refusal(expected: ExpectedProposer, told: proposer_pb2.Capabilities) -> str:
    with pytest.raises(HandshakeError) as caught:
        expected.check(told)
    return str(caught.value)


def test_as_expected() -> None:
    expected = ExpectedProposer("ngram", 4, {"prompt_lookup_max": 5, "prompt_lookup_min": 2})
    expected.check(capabilities(options={"prompt_lookup_max": "5", "prompt_lookup_min": "2"}))
    # An option that it tells and nobody asked for, and one that it does not tell.
    expected.check(capabilities(options={"other": "1", "prompt_lookup_max": "5"}))
    expected.check(capabilities())


def test_numbers_are_compared_as_numbers() -> None:
    expected = ExpectedProposer("suffix", 4, {"suffix_decoding_max_spec_factor": 1})
    expected.check(
        capabilities(method="suffix", options={"suffix_decoding_max_spec_factor": "1.0"})
    )


def test_another_method() -> None:
    text = refusal(ExpectedProposer("ngram", 4), capabilities(method="suffix"))
    assert text == "is a 'suffix' proposer; the speculative config says 'ngram'"


@pytest.mark.parametrize("told", ["3", '"5"', "null", "not json", ""])
def test_another_option(told: str) -> None:
    expected = ExpectedProposer("ngram", 4, {"prompt_lookup_max": 5})
    text = refusal(expected, capabilities(options={"prompt_lookup_max": told}))
    assert text == f"runs with prompt_lookup_max {told}; the speculative config says 5"


@pytest.mark.parametrize(("own", "asked"), [(4, 4), (8, 8), (24, 8)])
def test_the_hello_has_the_lower_ceiling(own: int, asked: int) -> None:
    hello = ExpectedProposer("ngram", own).hello(HELLO)
    assert hello.num_speculative_tokens == asked
    assert hello.to_proto().hello.max_draft_tokens == asked
    assert hello.context_limit == HELLO.context_limit
