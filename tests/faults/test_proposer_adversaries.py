"""Adversaries over real sockets: dropped and counted, the honest proposer beside them unharmed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proposer_service.adversaries import start_adversary
from proposer_service.server import RunningServer
from tests.faults.proposer_process import (
    PATIENCE_S,
    VOCABULARY,
    ProposerProcess,
    Text,
    all_connected,
    attach,
    eventually,
    play,
)
from verifier_service.proposer_state import LinkState, ProposerState


class Servers:
    """Adversaries on an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._running: list[RunningServer] = []

    def start(self, kind: str, address: str) -> None:
        starting = start_adversary(kind, address, vocabulary_size=VOCABULARY, delay_seconds=0.3)
        future = asyncio.run_coroutine_threadsafe(starting, self._loop)
        self._running.append(future.result(PATIENCE_S))

    def stop(self) -> None:
        for server in self._running:
            asyncio.run_coroutine_threadsafe(server.stop(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"unix:{tmp_path_factory.mktemp('honest')}/p.sock"
    process = ProposerProcess(address, name="honest")
    yield address
    process.kill()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.stop()


Judge = Callable[[ProposerState], bool]


def dropping(*reasons: str) -> Judge:
    return lambda state: any(state.dropped.get(reason, 0) >= 5 for reason in reasons)


def unwelcome(words: str, *links: LinkState) -> Judge:
    return lambda state: state.state in links and words in state.detail


CASES: list[tuple[str, Judge]] = [
    ("random", lambda state: state.draft_blocks >= 5 and state.dropped == {}),
    ("always_wrong", lambda state: state.draft_blocks >= 5 and state.dropped == {}),
    ("out_of_range", dropping("out_of_range")),
    ("stale_epoch", dropping("stale")),
    ("stale_base", dropping("stale")),
    ("wrong_length", dropping("too_long")),
    ("duplicated", dropping("duplicate")),
    ("false_claim", lambda state: state.lookahead_none >= 5 and state.dropped == {}),
    ("flood", unwelcome("far more messages", LinkState.QUARANTINED)),
    ("other_vocabulary", unwelcome("of-another-tokenizer", LinkState.REFUSED)),
]


@pytest.mark.parametrize(("kind", "judge"), CASES, ids=[kind for kind, _ in CASES])
def test_an_adversary_is_dropped_and_counted_beside_an_honest_proposer(
    kind: str, judge: Judge, honest: str, servers: Servers, tmp_path: Path
) -> None:
    bad = f"unix:{tmp_path}/bad.sock"
    servers.start(kind, bad)
    pool = attach([bad, honest])
    try:
        eventually(lambda: pool.states()[1].state is LinkState.CONNECTED)
        eventually(lambda: pool.states()[0].state is not LinkState.CONNECTING)
        texts = [Text(1), Text(2)]

        def judged() -> bool:
            (drafts,) = play(pool, texts, 1)
            assert all("honest" in drafts[text.sequence_id] for text in texts)
            return judge(pool.states()[0])

        eventually(judged)
        honest_state = pool.states()[1]
        assert (honest_state.dropped, honest_state.faults) == ({}, 0)
    finally:
        pool.close()


NEVER_IN_TIME: list[tuple[str, Judge]] = [
    ("silent", lambda state: state.dropped == {}),
    ("garbage", lambda state: state.dropped.get("unparsable", 0) >= 3),
    ("delayed", lambda state: state.dropped.get("late", 0) >= 1),
]


@pytest.mark.parametrize(("kind", "judge"), NEVER_IN_TIME, ids=[k for k, _ in NEVER_IN_TIME])
def test_one_that_never_answers_in_time_is_soon_not_waited_for(
    kind: str, judge: Judge, honest: str, servers: Servers, tmp_path: Path
) -> None:
    bad = f"unix:{tmp_path}/bad.sock"
    servers.start(kind, bad)
    pool = attach([bad, honest], deadline_s=0.2)
    try:
        eventually(lambda: all_connected(pool))
        texts = [Text(1), Text(2)]

        def judged() -> bool:
            play(pool, texts, 1)
            return pool.states()[0].state is LinkState.SLOW and judge(pool.states()[0])

        eventually(judged)
        assert pool.states()[0].draft_blocks == 0
        eventually(lambda: play(pool, texts, 3) == [{1: {"honest"}, 2: {"honest"}}] * 3)
    finally:
        pool.close()


def test_messages_out_of_order_make_no_wrong_block(
    honest: str, servers: Servers, tmp_path: Path
) -> None:
    bad = f"unix:{tmp_path}/bad.sock"
    servers.start("reordered", bad)
    pool = attach([bad, honest], deadline_s=0.2)
    try:
        eventually(lambda: all_connected(pool))
        texts = [Text(1), Text(2)]
        # `play` checks every block's base.
        history = play(pool, texts, 50)
        assert sum("honest" in drafts.get(1, set()) for drafts in history) > 40
    finally:
        pool.close()
