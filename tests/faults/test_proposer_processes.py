"""Real proposers over Unix sockets: killed, frozen, restarted; the rounds go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.proposer_process import (
    ProposerProcess,
    Text,
    all_connected,
    attach,
    eventually,
    play,
)
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState


@pytest.fixture
def addresses(tmp_path: Path) -> list[str]:
    return [f"unix:{tmp_path}/{name}.sock" for name in ("a", "b")]


@pytest.fixture
def start() -> Iterator[Callable[..., ProposerProcess]]:
    processes: list[ProposerProcess] = []

    def start_process(listen: str, method: str = "ngram", **settings: object) -> ProposerProcess:
        processes.append(ProposerProcess(listen, method, **settings))
        return processes[-1]

    yield start_process
    for process in processes:
        process.kill()


@pytest.fixture
def pools() -> Iterator[list[ProposerPool]]:
    made: list[ProposerPool] = []
    yield made
    for pool in made:
        pool.close()


def test_drafts_resume_after_kill_nine_and_restart(
    addresses: list[str], start: Callable[..., ProposerProcess], pools: list[ProposerPool]
) -> None:
    process = start(addresses[0])
    pool = attach(addresses[:1])
    pools.append(pool)
    eventually(lambda: all_connected(pool))
    texts = [Text(1), Text(2)]
    assert play(pool, texts, 5)[-1] == {1: {"ngram"}, 2: {"ngram"}}
    process.kill()
    eventually(lambda: not all_connected(pool))
    assert play(pool, texts, 5) == [{}] * 5
    start(addresses[0])
    eventually(lambda: all_connected(pool))
    # The mirrors are whole again, what was committed meanwhile included.
    before = sum(text.accepted for text in texts)
    assert play(pool, texts, 5) == [{1: {"ngram"}, 2: {"ngram"}}] * 5
    assert sum(text.accepted for text in texts) - before == 40
    state = pool.states()[0]
    assert (state.reconnects, state.faults, state.dropped) == (1, 0, {})


def test_kill_nine_in_the_middle_of_rounds_disturbs_no_round(
    addresses: list[str], start: Callable[..., ProposerProcess], pools: list[ProposerPool]
) -> None:
    victim = start(addresses[0], "ngram")
    start(addresses[1], "suffix")
    pool = attach(addresses)
    pools.append(pool)
    eventually(lambda: all_connected(pool))
    texts = [Text(1), Text(2)]
    play(pool, texts, 5)
    pool.send([text.view() for text in texts], [])
    victim.kill()
    begun = time.monotonic()
    drafts = pool.collect()
    # Far below the deadline of these pools: a death ends the wait.
    assert time.monotonic() - begun < 15.0
    for text in texts:
        text.verify(drafts[text.sequence_id][0])
    eventually(lambda: not all_connected(pool))
    assert play(pool, texts, 5)[-1] == {1: {"suffix"}, 2: {"suffix"}}


def test_a_frozen_proposer_is_slow_then_catches_up(
    addresses: list[str], start: Callable[..., ProposerProcess], pools: list[ProposerPool]
) -> None:
    process = start(addresses[0])
    # Long enough that only the freeze misses it.
    pool = attach(addresses[:1], deadline_s=0.5)
    pools.append(pool)
    eventually(lambda: all_connected(pool))
    text = Text(1)
    play(pool, [text], 5)
    process.pause()
    assert play(pool, [text], 30)[3:] == [{}] * 27
    assert pool.states()[0].state is LinkState.SLOW
    process.resume()

    def drafts_again() -> bool:
        return play(pool, [text], 1) == [{1: {"ngram"}}]

    eventually(drafts_again)
    eventually(lambda: play(pool, [text], 1) == [{1: {"ngram"}}] and all_connected(pool))
    assert pool.states()[0].faults == 0


def test_look_ahead_gives_the_very_blocks_that_asking_gives(
    addresses: list[str], start: Callable[..., ProposerProcess], pools: list[ProposerPool]
) -> None:
    start(addresses[0], name="ahead", lookahead=True)
    start(addresses[1], name="asked", lookahead=False)
    pool = attach(addresses)
    pools.append(pool)
    eventually(lambda: all_connected(pool))
    texts = [Text(1, 7), Text(2, 11), Text(3, 13)]
    hits = 0

    def one_round() -> bool:
        nonlocal hits
        pool.send([text.view() for text in texts], [])
        drafts = pool.collect()
        for text in texts:
            by_name = {block.proposer: block for block in drafts.get(text.sequence_id, [])}
            assert set(by_name) in ({"ahead", "asked"}, set())
            if by_name:
                assert by_name["ahead"].token_ids == by_name["asked"].token_ids
                assert not by_name["asked"].lookahead_hit
                hits += by_name["ahead"].lookahead_hit
            text.verify(by_name.get("asked"))
        time.sleep(0.002)  # The verifier runs; meanwhile outcomes are prepared.
        return hits >= 20

    eventually(one_round)
    states = {state.name: state for state in pool.states()}
    assert states["ahead"].lookahead_hits == hits
    assert states["asked"].lookahead_hits == 0
    assert states["ahead"].faults == states["asked"].faults == 0


def test_closed_sequences_make_room(
    addresses: list[str], start: Callable[..., ProposerProcess], pools: list[ProposerPool]
) -> None:
    start(addresses[0], max_sequences=8)
    pool = attach(addresses[:1])
    pools.append(pool)
    eventually(lambda: all_connected(pool))
    closed: list[tuple[int, bool]] = []
    for generation in range(4):
        texts = [Text(8 * generation + i) for i in range(8)]
        for _ in range(3):
            pool.send([text.view() for text in texts], closed)
            closed = []
            drafts = pool.collect()
            for text in texts:
                text.verify(drafts.get(text.sequence_id, [None])[0])
        assert set(drafts) == {text.sequence_id for text in texts}
        closed = [(text.sequence_id, True) for text in texts]
    assert (pool.states()[0].faults, pool.states()[0].unserved) == (0, {})


def test_a_proposer_for_fewer_drafts_than_k_refuses_in_words(
    addresses: list[str], start: Callable[..., ProposerProcess], pools: list[ProposerPool]
) -> None:
    start(addresses[0], max_draft_tokens=2)
    pool = attach(addresses[:1])
    pools.append(pool)
    eventually(lambda: pool.states()[0].state is LinkState.REFUSED)
    assert "max_draft_tokens 4" in pool.states()[0].detail
