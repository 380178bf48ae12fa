"""A proposer that is not what the verifier was told of is refused, in words."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest
from speculation.v1 import proposer_pb2

from outrider.fake_transport import FakeNetwork
from outrider.scripted_proposer import ScriptedProposer
from outrider.scripted_proposer import capabilities as scripted
from proposer_service.server import start
from proposer_service.settings import ProposerSettings
from tests.verifier_service.proposer_world import view
from verifier_service.proposer_expectation import ExpectedProposer
from verifier_service.proposer_handshake import HandshakeError, HelloParameters
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState

HELLO = HelloParameters(
    verifier_instance_id="v",
    vocabulary_fingerprint="f",
    vocabulary_size=1000,
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


def pool_of(
    network: FakeNetwork, addresses: list[str], expected: list[ExpectedProposer]
) -> ProposerPool:
    pool = ProposerPool(
        addresses,
        HELLO,
        0.01,
        expected=expected,
        transport=network,
        clock=network,
        rng=random.Random(0),
        maintain=False,
    )
    pool.tick()
    network.advance(0.0)
    return pool


def test_the_pool_refuses_one_and_drafts_with_the_other(caplog: pytest.LogCaptureFixture) -> None:
    network = FakeNetwork()
    for address in ("unix:a", "unix:b"):
        network.serve(address, ScriptedProposer(welcome=scripted(address[-1])))
    expected = [ExpectedProposer("suffix", 8), ExpectedProposer("ngram", 8)]
    with caplog.at_level(logging.WARNING):
        pool = pool_of(network, ["unix:a", "unix:b"], expected)
    refused, connected = pool.states()
    assert refused.state is LinkState.REFUSED
    assert refused.detail == "is a 'ngram' proposer; the speculative config says 'suffix'"
    assert connected.state is LinkState.CONNECTED
    assert "proposer unix:a: refused: is a 'ngram' proposer" in caplog.text
    pool.send([view(1, [1, 2])], [])
    assert [block.proposer for block in pool.collect()[1]] == ["b"]
    pool.close()


def test_each_proposer_is_asked_for_its_own_ceiling() -> None:
    network = FakeNetwork()
    proposers = [ScriptedProposer(welcome=scripted(name)) for name in "ab"]
    for address, proposer in zip(("unix:a", "unix:b"), proposers, strict=True):
        network.serve(address, proposer)
    pool = pool_of(
        network, ["unix:a", "unix:b"], [ExpectedProposer("ngram", 2), ExpectedProposer("ngram", 8)]
    )
    assert [proposer.hellos[0].max_draft_tokens for proposer in proposers] == [2, 8]
    pool.send([view(1, [1, 2], k=8)], [])
    assert [len(block.token_ids) for block in pool.collect()[1]] == [2, 8]
    pool.close()


def test_there_is_one_expectation_for_each_address() -> None:
    with pytest.raises(ValueError, match="1 expected proposers for 2 addresses"):
        pool_of(FakeNetwork(), ["unix:a", "unix:b"], [ExpectedProposer("ngram", 2)])


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [("ngram", "prompt_lookup_min", 2), ("suffix", "suffix_decoding_min_token_prob", 0.25)],
)
async def test_our_proposers_tell_their_options(
    tmp_path: Path, method: str, key: str, value: object
) -> None:
    settings = ProposerSettings(listen=f"unix:{tmp_path}/p.sock", method=method, **{key: value})  # type: ignore[arg-type]
    told = settings.method_options()
    assert told[key] == value
    assert all(name.startswith(("prompt_lookup_", "suffix_decoding_")) for name in told)
    running = await start(settings)
    try:
        import grpc.aio
        from speculation.v1 import proposer_pb2_grpc

        async with grpc.aio.insecure_channel(running.address) as channel:
            stub = proposer_pb2_grpc.ProposerServiceStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.GetCapabilities(proposer_pb2.GetCapabilitiesRequest())
    finally:
        await running.stop()
    assert {k: json.loads(v) for k, v in answer.capabilities.options.items()} == told
    ExpectedProposer(method, 4, {key: value}).check(answer.capabilities)
    assert "runs with" in refusal(ExpectedProposer(method, 4, {key: 99}), answer.capabilities)
