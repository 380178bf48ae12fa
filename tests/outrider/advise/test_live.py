"""Running proposers replayed through the protocol say what the same method says in process."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from outrider.advise.live import LiveProposer, ask_capabilities
from outrider.advise.methods import Method, Replayed, ngram, replay_all, suffix
from outrider.advise.spool import TrafficRequest
from outrider.errors import OperationError
from proposer_service.proposers.suffix_options import SuffixOptions
from tests.outrider.advise.recording import spool
from tests.outrider.advise.serving import proposer_at
from verifier_service.proposer_handshake import HelloParameters

VOCABULARY = 50


def hello(**changes: int) -> HelloParameters:
    return HelloParameters(
        verifier_instance_id="advise-test",
        vocabulary_fingerprint="fingerprint",
        vocabulary_size=VOCABULARY,
        eos_token_ids=(1,),
        max_sequences=64,
        num_speculative_tokens=1,
        context_limit=changes.get("context_limit", 4096),
        on_cpu=True,
    )


def traffic(count: int = 6) -> list[TrafficRequest]:
    rng = random.Random(5)
    phrases = [[rng.randrange(VOCABULARY) for _ in range(6)] for _ in range(4)]

    def text(length: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < length:
            ids += [*rng.choice(phrases), rng.randrange(VOCABULARY)]
        return ids[:length]

    return [
        TrafficRequest(
            text(rng.randrange(1, 40)),
            text(rng.randrange(1, 40)),
            rng.choice([None, 60]),
            rng.choice(["", "a"]),
            finished=rng.random() < 0.8,
        )
        for _ in range(count)
    ]


def live(address: str, ks: list[int], requests: list[TrafficRequest]) -> Replayed:
    proposer = LiveProposer(address, ask_capabilities(address), hello(), ks)
    reported: list[int] = []
    with proposer.connected(), spool(requests) as spooled:
        result = proposer.replay_all(spooled, lambda: reported.append(1))
    assert len(reported) == len(requests)
    return result


def sums(replayed: Replayed) -> list[tuple[object, ...]]:
    return [(t.k, t.acceptance, t.rounds, t.emitted, t.by_drafted) for t in replayed.tallies]


@pytest.mark.parametrize(
    "method", [ngram(2, 5), suffix(SuffixOptions())], ids=lambda method: method.name
)
def test_a_live_proposer_accepts_what_its_method_accepts(method: Method, socket_dir: Path) -> None:
    options = dict(method.config)
    with proposer_at(socket_dir, method=method.method, **options) as address:
        measured = live(address, [1, 2, 8], traffic())
        # What it remembers of one replay does not shape the next.
        again = live(address, [1, 2, 8], traffic())
    with spool(traffic()) as spooled:
        (expected,) = replay_all([method], [1, 2, 8], spooled, lambda done, total: None)
    assert any(t.acceptance.num_accepted_draft_tokens for t in expected.tallies)
    assert sums(measured) == sums(expected) == sums(again)
    assert measured.name == f"{method.method} (live)" and measured.address == address


def test_a_k_that_the_proposer_does_not_draft_is_left_out(socket_dir: Path) -> None:
    with proposer_at(socket_dir, method="ngram", max_draft_tokens=4) as address:
        assert [t.k for t in live(address, [2, 4, 8], traffic(1)).tallies] == [2, 4]
        assert [t.k for t in live(address, [8], traffic(1)).tallies] == [4]


def test_more_ks_than_it_follows_sequences_go_one_after_the_other(socket_dir: Path) -> None:
    with proposer_at(
        socket_dir, method="ngram", prompt_lookup_min=2, prompt_lookup_max=5, max_sequences=2
    ) as address:
        measured = live(address, [1, 2, 3, 4, 5], traffic())
    with spool(traffic()) as spooled:
        (expected,) = replay_all([ngram(2, 5)], [1, 2, 3, 4, 5], spooled, lambda *_: None)
    assert sums(measured) == sums(expected)


def test_prompts_that_take_several_messages_are_opened_whole(socket_dir: Path) -> None:
    long = TrafficRequest([n % VOCABULARY for n in range(70_000)], list(range(20)) * 2)
    with proposer_at(socket_dir, method="ngram") as address:
        proposer = LiveProposer(
            address, ask_capabilities(address), hello(context_limit=100_000), [4]
        )
        with proposer.connected(), spool([long]) as spooled:
            measured = proposer.replay_all(spooled, lambda: None)
    with spool([long]) as spooled:
        (expected,) = replay_all([ngram(5, 5)], [4], spooled, lambda *_: None)
    assert expected.tallies[0].acceptance.num_accepted_draft_tokens
    assert sums(measured) == sums(expected)


def test_nobody_at_the_address_is_told(socket_dir: Path) -> None:
    with pytest.raises(OperationError, match="--live: no proposer answers at unix:"):
        ask_capabilities(f"unix:{socket_dir}/none.sock")


def test_a_proposer_that_dies_meanwhile_ends_the_replay(socket_dir: Path) -> None:
    with proposer_at(socket_dir, method="ngram", prompt_lookup_min=1) as address:
        proposer = LiveProposer(address, ask_capabilities(address), hello(), [4])
        connected = proposer.connected()
        connected.__enter__()
    try:
        with spool(traffic()) as spooled, pytest.raises(OperationError, match="went away"):
            proposer.replay_all(spooled, lambda: None)
    finally:
        connected.__exit__(None, None, None)
