"""Drafter and target that do not speak the same ids: found at the handshake, in words, or dropped.

Each test's name carries the report; docs/regressions.md lists them all.
"""

from __future__ import annotations

import pytest
from speculation.v1 import proposer_pb2

from outrider.scripted_proposer import ScriptedProposer, capabilities
from outrider.vocabulary import fingerprint
from proposer_service.handshake import HelloRefusedError, check_hello
from proposer_service.handshake import describe as describe_proposer
from proposer_service.proposers.ngram import NgramProposer
from tests.regressions.bench import Bench, greedy, plain
from tests.regressions.network import ProposerServer, Wire
from tests.verifier_service.tokenizers_for_tests import byte_level_tokenizer
from verifier_service.proposer_handshake import HandshakeError, HelloParameters, check_welcome
from verifier_service.proposer_state import LinkState
from verifier_service.text import Text

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


def hello(size: int = 1000, vocabulary: str = "00ff") -> HelloParameters:
    return HelloParameters("verifier", vocabulary, size, (0,), 8, 4, 2048)


def drafter(size: int, vocabulary: str) -> proposer_pb2.Capabilities:
    return describe_proposer(
        instance_id="1",
        name="drafter",
        method="draft_model",
        max_sequences=8,
        max_draft_tokens=8,
        context_limit=0,
        lookahead=False,
        vocabulary_fingerprint=vocabulary,
        vocabulary_size=size,
    )


def meet(target: HelloParameters, own: proposer_pb2.Capabilities) -> None:
    """The handshake as both sides judge it; raises where either refuses."""
    check_hello(target.to_proto().hello, own)
    check_welcome(own, target)


@pytest.mark.parametrize("padded", [1000, 1024, 1056])
def test_llamacpp_25818_padded_sizes_of_one_tokenizer_are_taken(padded: int) -> None:
    """Sizes differ inside one model family by their padding: equal tokenizers were refused."""
    meet(hello(1000), drafter(padded, "00ff"))
    meet(hello(padded), drafter(1000, "00ff"))


def test_llamacpp_25818_sizes_that_differ_are_refused_where_nothing_else_is_known() -> None:
    """Without a fingerprint the size is all there is: both sides say both numbers."""
    with pytest.raises(HelloRefusedError, match=r"vocabulary_size 1000: .* is 1024"):
        check_hello(hello(1000).to_proto().hello, drafter(1024, ""))
    with pytest.raises(HandshakeError, match="1024 ids; the target's has 1000"):
        check_welcome(drafter(1024, ""), hello(1000))


def test_tightwad_equal_sizes_of_different_vocabularies_are_refused() -> None:
    """A family check passed a pair of one architecture and size whose ids meant other tokens."""
    for own in (drafter(1000, "beef"), drafter(1024, "beef")):
        with pytest.raises(HelloRefusedError, match=r"'00ff'.*'beef'"):
            check_hello(hello(1000).to_proto().hello, own)
        with pytest.raises(HandshakeError, match=r"vocabulary beef .* the target's is 00ff"):
            check_welcome(own, hello(1000))


def test_tightwad_a_refused_pair_decodes_plainly_and_says_why() -> None:
    """Refused at the handshake, so no id of the other vocabulary is ever verified."""
    wire = Wire(
        ProposerServer(NgramProposer(1, 3), vocabulary_fingerprint="beef", vocabulary_size=4)
    )
    bench = Bench(wire)
    bench.add("a", PROMPT, greedy(20))
    bench.finish()
    assert bench.tokens("a") == plain(PROMPT, greedy(20))
    assert bench.acceptance("a").num_spec_steps == 0
    assert wire.state().state is LinkState.REFUSED
    assert "beef" in wire.state().detail


def test_llamacpp_23982_ids_in_the_padding_are_dropped_block_by_block() -> None:
    """A drafter padded further than the target may guess ids the target does not have."""
    welcome = capabilities()
    welcome.vocabulary_fingerprint = "00ff"
    welcome.vocabulary_size = 8

    def draft(ids: object, k: int) -> list[int]:
        padding = len(ids) % 2  # type: ignore[arg-type]
        return [5 if padding else 1] * k

    wire = Wire(ScriptedProposer(welcome=welcome, draft=draft))
    bench = Bench(wire)
    bench.add("a", PROMPT, greedy(20))
    bench.finish()
    assert bench.tokens("a") == plain(PROMPT, greedy(20))
    assert wire.state().state is LinkState.CONNECTED
    assert wire.state().dropped["out_of_range"] > 0
    assert bench.acceptance("a").num_draft_tokens > 0
    assert all(token < 4 for chunk in bench.chunks for token in chunk.ids)


def test_mac_mlx_68_special_tokens_count_by_string_and_by_id() -> None:
    """Ports compare special tokens' strings and ids: the fingerprint has both, padding not."""
    tokens = {"a": 0, "b": 1, "<eos>": 2}
    renamed = {"a": 0, "b": 1, "</s>": 2}
    moved = {"a": 0, "b": 2, "<eos>": 1}
    assert len({fingerprint(t) for t in (tokens, renamed, moved)}) == 3
    tokenizer = byte_level_tokenizer()
    before = Text(tokenizer).fingerprint
    tokenizer.add_special_tokens({"additional_special_tokens": ["<one-more>"]})
    assert Text(tokenizer).fingerprint != before
