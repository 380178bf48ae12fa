"""While the device stands still for the engine's thread nobody reads what proposers say."""

from __future__ import annotations

import threading

import pytest

from outrider.scripted_proposer import ScriptedProposer
from tests.verifier_service.proposer_world import World, view, world
from verifier_service import proposer_pool

# Of virtual time.
DELAY_S = 0.002


@pytest.fixture(autouse=True)
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read by chance, because a hush is over."""
    monkeypatch.setattr(proposer_pool, "_LONGEST_HUSH_S", 60.0)


def asked() -> World:
    """A proposer that is about to answer."""
    w = world(ScriptedProposer())
    w.network.endpoint("unix:a").delay = DELAY_S
    w.pool.send([view(1, [1, 2])], [])
    return w


def test_what_comes_meanwhile_is_read_behind_it() -> None:
    w = asked()
    w.pool.hush()
    reader = threading.Thread(target=w.network.advance, args=(2 * DELAY_S,), daemon=True)
    reader.start()
    reader.join(0.1)
    assert reader.is_alive()
    # The engine's thread finds the pool free.
    assert w.pool.behind([(1, [9])]) == (0, 1)
    assert w.pool.collect(wait=False) == {}
    assert reader.is_alive()
    w.pool.listen()
    reader.join(30.0)
    assert not reader.is_alive()
    assert w.state().draft_blocks == 0, "it came too late for its step"
    assert w.state().wait_count == 1


def test_it_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer_pool, "_LONGEST_HUSH_S", 0.01)
    w = asked()
    w.pool.hush()
    w.network.advance(2 * DELAY_S)
    assert w.pool.collect(wait=False)[1]


def test_whoever_waits_for_answers_hears_them() -> None:
    w = asked()
    w.pool.hush()
    assert w.pool.collect()[1]
    assert w.pool._listening.is_set()


def test_whoever_asks_listens() -> None:
    w = asked()
    w.pool.collect()
    w.pool.hush()
    w.pool.send([view(1, [1, 2, 3])], [])
    w.network.advance(2 * DELAY_S)
    assert w.pool.collect(wait=False)[1]


def test_nobody_is_left_waiting_at_the_end() -> None:
    w = asked()
    w.pool.hush()
    reader = threading.Thread(target=w.network.advance, args=(2 * DELAY_S,), daemon=True)
    reader.start()
    w.pool.close()
    reader.join(30.0)
    assert not reader.is_alive()
