"""Waiting, failing, coming back: what a proposer's trouble costs the engine, which is little."""

from __future__ import annotations

import logging

import pytest

from outrider.errors import InputError
from outrider.fake_transport import FakeNetwork
from outrider.scripted_proposer import ScriptedProposer, capabilities
from outrider.transport import Listener, Stream
from tests.verifier_service.proposer_world import ADDRESS, DEADLINE_S, World, hello, view, world
from verifier_service.proposer_pool import ProposerPool
from verifier_service.proposer_state import LinkState


def test_without_a_proposer_there_is_nothing_to_wait_for() -> None:
    w = World({})
    assert w.timed_round(view(1, [1, 2])) == ({}, 0.0)
    assert w.pool.states() == []


def test_before_a_proposer_is_there_nothing_is_waited_for() -> None:
    w = world(serve=False)
    assert w.link() is LinkState.CONNECTING
    assert w.timed_round(view(1, [1, 2])) == ({}, 0.0)


def test_returns_when_the_last_expected_answer_is_there() -> None:
    w = World({"unix:a": ScriptedProposer(), "unix:b": ScriptedProposer()})
    w.network.endpoint("unix:a").delay = 0.002
    w.network.endpoint("unix:b").delay = 0.006
    drafts, elapsed = w.timed_round(view(1, [1, 2]))
    assert len(drafts[1]) == 2
    assert elapsed == pytest.approx(0.006)


def test_the_deadline_counts_from_the_send() -> None:
    w = world()
    w.network.endpoint(ADDRESS).held = True
    w.pool.send([view(1, [1, 2])], [])
    w.network.advance(0.008)
    start = w.network.now()
    assert w.pool.collect() == {}
    assert w.network.now() - start == pytest.approx(0.002)


def test_the_other_proposers_blocks_are_kept_when_one_misses() -> None:
    w = World({"unix:a": ScriptedProposer(), "unix:b": ScriptedProposer()})
    w.network.endpoint("unix:a").held = True
    drafts, elapsed = w.timed_round(view(1, [1, 2]))
    assert [b.proposer for b in drafts[1]] == ["scripted-2"]
    assert elapsed == pytest.approx(DEADLINE_S)


class TestSlow:
    def hang(self, w: World, rounds: int) -> list[float]:
        w.network.endpoint(ADDRESS).held = True
        return self.rounds(w, rounds)

    def rounds(self, w: World, rounds: int, pause: float = 0.0) -> list[float]:
        times = []
        for _ in range(rounds):
            self.ids.append(3)
            told = view(1, self.ids, proposer="scripted", drafted=4, accepted=0)
            times.append(w.timed_round(told)[1])
            w.settle(pause)
        return times

    @pytest.fixture(autouse=True)
    def start(self) -> None:
        self.ids = [1, 2]

    def test_a_hanging_proposer_costs_three_deadlines_in_all(self) -> None:
        w = world()
        self.rounds(w, 2)
        times = self.hang(w, 50)
        assert times == pytest.approx([DEADLINE_S] * 3 + [0.0] * 47)
        assert w.link() is LinkState.SLOW
        assert "10 ms" in w.state().detail

    def test_one_that_was_quick_and_hangs_costs_no_deadlines_that_another_needs(self) -> None:
        w = World({ADDRESS: ScriptedProposer()}, deadline_s=1.0)
        w.network.endpoint(ADDRESS).delay = 0.002
        self.rounds(w, 10)
        times = self.hang(w, 10)
        assert times == pytest.approx([0.016] * 3 + [0.0] * 7)
        assert w.link() is LinkState.SLOW

    def test_the_quick_ones_are_given_up_while_a_slow_one_is_waited_for(self) -> None:
        w = World({"unix:a": ScriptedProposer(), "unix:b": ScriptedProposer()}, deadline_s=1.0)
        w.network.endpoint("unix:a").delay = 0.001
        w.network.endpoint("unix:b").delay = 0.050
        self.rounds(w, 10)
        w.network.endpoint("unix:a").held = True
        self.ids.append(3)
        drafts, elapsed = w.timed_round(view(1, self.ids))
        assert elapsed == pytest.approx(0.050)
        assert [block.proposer for block in drafts[1]] == ["scripted-2"]

    def test_a_hanging_proposer_is_sent_few_steps(self) -> None:
        proposer = ScriptedProposer()
        w = world(proposer)
        self.hang(w, 50)
        w.settle()
        assert len(proposer.steps) <= 4

    def test_while_slow_it_has_one_step_at_a_time(self) -> None:
        proposer = ScriptedProposer()
        w = world(proposer)
        self.hang(w, 10)
        w.network.release(ADDRESS)
        w.settle()
        before = len(proposer.steps)
        self.hang(w, 10)
        w.settle()
        assert len(proposer.steps) - before == 1

    def test_it_catches_up_in_one_commit_and_is_waited_for_again(self) -> None:
        proposer = ScriptedProposer()
        w = world(proposer)
        self.hang(w, 50)
        w.network.release(ADDRESS)
        w.settle()
        before = len(proposer.steps)
        self.rounds(w, 1)
        w.settle()
        assert proposer.sequences[1].ids == self.ids
        (update,) = proposer.steps[before].updates
        assert len(update.commit.token_ids) > 40
        # The last of many rounds must not be told as if it were all of them.
        assert (update.commit.proposer, update.commit.drafted) == ("", 0)
        self.rounds(w, 3, pause=0.001)
        (update,) = proposer.steps[-1].updates
        assert (update.commit.proposer, update.commit.drafted) == ("scripted", 4)
        assert w.link() is LinkState.CONNECTED
        assert set(w.round(view(1, [*self.ids, 5]))) == {1}

    def test_one_that_stays_late_is_not_waited_for_again(self) -> None:
        w = world()
        w.network.endpoint(ADDRESS).delay = 0.012
        times = self.rounds(w, 60, pause=0.05)
        assert sum(times) == pytest.approx(3 * DEADLINE_S)
        assert w.link() is LinkState.SLOW
        assert w.state().dropped["late"] > 50

    def test_a_slow_one_does_not_slow_the_other(self) -> None:
        w = World({"unix:a": ScriptedProposer(), "unix:b": ScriptedProposer()})
        self.hang(w, 5)
        drafts, elapsed = w.timed_round(view(1, self.ids))
        assert [b.proposer for b in drafts[1]] == ["scripted-2"]
        assert elapsed == 0.0

    def test_occasional_misses_do_not_make_it_slow(self) -> None:
        w = world()
        for _ in range(10):
            w.network.endpoint(ADDRESS).drop = 2
            self.rounds(w, 3)
        assert w.link() is LinkState.CONNECTED

    def test_no_answer_for_half_a_minute_starts_the_stream_anew(self) -> None:
        w = world()
        self.hang(w, 5)
        w.settle(25.0)
        assert w.link() is LinkState.SLOW
        w.settle(6.0)
        assert "no answer to a step for 30 s" in w.state().detail
        w.network.release(ADDRESS)
        w.settle(3.0)
        assert w.link() is LinkState.CONNECTED
        self.ids.append(4)
        assert w.round(view(1, self.ids))[1][0].token_ids == (5, 6, 7, 8)

    def test_closes_reach_it_when_it_is_back(self) -> None:
        proposer = ScriptedProposer()
        w = world(proposer)
        self.hang(w, 10)
        w.round(closed=((1, True),))
        w.network.release(ADDRESS)
        w.settle()
        w.round(view(2, [5]))
        w.settle()
        assert proposer.closes == [(1, True)]


class TestFailure:
    def test_a_kill_during_the_wait_ends_it_at_once(self) -> None:
        w = world()
        w.network.endpoint(ADDRESS).held = True
        w.pool.send([view(1, [1, 2])], [])
        w.network.schedule(0.001, lambda: w.network.kill(ADDRESS))
        start = w.network.now()
        assert w.pool.collect() == {}
        assert w.network.now() - start == pytest.approx(0.001)
        assert w.state().detail == "UNAVAILABLE: socket closed"

    def test_dead_costs_nothing(self) -> None:
        w = world()
        w.round(view(1, [1, 2]))
        w.network.kill(ADDRESS)
        ids = [1, 2]
        for _ in range(100):
            ids.append(3)
            assert w.timed_round(view(1, ids)) == ({}, 0.0)

    @pytest.mark.parametrize("downtime", [0.05, 1.0, 60.0, 1000.0])
    def test_drafts_resume_within_five_seconds_of_a_restart(self, downtime: float) -> None:
        w = world()
        ids = [1, 2]
        w.round(view(1, ids))
        w.network.kill(ADDRESS)
        w.settle(downtime)
        ids.append(7)
        restarted = ScriptedProposer()
        w.network.serve(ADDRESS, restarted)
        w.settle(2.5)
        assert w.round(view(1, ids))[1][0].token_ids == (8, 9, 10, 11)
        assert restarted.sequences[1].ids == [1, 2, 7]
        assert w.state().reconnects == 1

    def test_attempts_back_off(self) -> None:
        w = world(serve=False)
        w.settle(1.0)
        assert 3 <= w.network.endpoint(ADDRESS).connects <= 6
        w.settle(99.0)
        assert 45 <= w.network.endpoint(ADDRESS).connects <= 75

    def test_epochs_are_new_after_a_reconnect(self) -> None:
        proposer = ScriptedProposer()
        w = world(proposer)
        w.round(view(1, [1, 2]))
        epoch = proposer.sequences[1].epoch
        w.network.break_streams(ADDRESS)
        w.settle(1.0)
        w.round(view(1, [1, 2]))
        assert proposer.sequences[1].epoch > epoch

    def test_only_live_sequences_are_opened_again(self) -> None:
        proposer = ScriptedProposer()
        w = world(proposer)
        w.round(view(1, [1]), view(2, [2]))
        w.network.break_streams(ADDRESS)
        w.round(closed=((1, True),))
        w.settle(1.0)
        w.round(view(2, [2, 3]))
        assert set(proposer.sequences) == {2}
        assert proposer.closes == []

    def test_an_old_streams_events_are_not_heard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        w = world(serve=False)
        listeners: list[Listener] = []
        connect = w.network.connect

        def note(address: str, listener: Listener) -> Stream:
            listeners.append(listener)
            return connect(address, listener)

        monkeypatch.setattr(w.network, "connect", note)
        w.network.serve(ADDRESS, ScriptedProposer())
        w.settle(1.0)
        w.network.break_streams(ADDRESS)
        w.settle(1.0)
        assert (len(listeners), w.link()) == (2, LinkState.CONNECTED)
        listeners[0].received(b"\xff")
        listeners[0].closed("UNAVAILABLE", "again")
        assert (w.state().dropped, w.link()) == ({}, LinkState.CONNECTED)

    def test_success_makes_the_next_attempt_quick_again(self) -> None:
        w = world(serve=False)
        w.settle(60.0)
        w.network.serve(ADDRESS, ScriptedProposer())
        w.settle(3.0)
        w.round(view(1, [1, 2]))
        w.network.break_streams(ADDRESS)
        w.settle(0.2)
        assert w.link() is LinkState.CONNECTED

    @pytest.mark.parametrize("code", ["FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "INTERNAL"])
    def test_any_status_after_the_welcome_is_a_loss_and_no_refusal(self, code: str) -> None:
        w = world()
        w.network.break_streams(ADDRESS, code, "")
        assert w.link() is LinkState.CONNECTING
        w.settle(1.0)
        assert w.link() is LinkState.CONNECTED

    def test_a_regular_end_of_stream_is_a_loss_too(self) -> None:
        w = world()
        w.network.break_streams(ADDRESS, "OK", "")
        assert w.link() is LinkState.CONNECTING
        assert w.state().detail == "OK"
        w.settle(1.0)
        assert w.link() is LinkState.CONNECTED

    def test_one_log_line_while_it_is_gone(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        w = world()
        w.network.kill(ADDRESS)
        w.settle(50.0)
        assert [r.getMessage() for r in caplog.records] == [
            "proposer scripted (unix:a): not reachable: UNAVAILABLE: socket closed"
        ]

    def test_no_thread_to_be_had_is_a_failure_like_any_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        w = world(serve=False)

        def fail(address: str, listener: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(w.network, "connect", fail)
            w.settle(3.0)
            assert w.state().detail == "can't start new thread"
        w.network.serve(ADDRESS, ScriptedProposer())
        w.settle(3.0)
        assert w.link() is LinkState.CONNECTED

    def test_the_other_proposer_goes_on(self) -> None:
        w = World({"unix:a": ScriptedProposer(), "unix:b": ScriptedProposer()})
        w.round(view(1, [1]))
        w.network.kill("unix:a")
        drafts, elapsed = w.timed_round(view(1, [1, 2]))
        assert ([b.proposer for b in drafts[1]], elapsed) == (["scripted-2"], 0.0)

    def test_another_process_behind_the_address_is_judged_anew(self) -> None:
        w = world()
        w.network.kill(ADDRESS)
        other = capabilities("other")
        other.vocabulary_fingerprint = "beef"
        w.network.serve(ADDRESS, ScriptedProposer(welcome=other))
        w.settle(3.0)
        assert w.link() is LinkState.REFUSED


class TestClose:
    def test_ends_streams_and_ignores_later_calls(self) -> None:
        proposer = ScriptedProposer()
        w = world(proposer)
        w.round(view(1, [1, 2]))
        w.pool.close()
        w.network.advance()
        assert proposer.reply is None
        assert w.round(view(1, [1, 2, 3])) == {}
        w.pool.close()
        w.settle(5.0)
        assert w.network.endpoint(ADDRESS).connects == 1


class TestArguments:
    @pytest.mark.parametrize("address", ["", "unix:", "localhost", ":50051", "host:port"])
    def test_addresses_must_name_a_socket_or_port(self, address: str) -> None:
        with pytest.raises(InputError, match="proposers: "):
            ProposerPool([address], hello(), 0.01, transport=FakeNetwork())

    def test_addresses_must_differ(self) -> None:
        with pytest.raises(InputError, match="given twice"):
            ProposerPool(["unix:a", "unix://a"], hello(), 0.01, transport=FakeNetwork())

    @pytest.mark.parametrize("deadline", [0.0, -1.0, float("inf"), float("nan")])
    def test_the_deadline_must_be_a_positive_number(self, deadline: float) -> None:
        with pytest.raises(ValueError, match="draft_deadline_s"):
            ProposerPool(["unix:a"], hello(), deadline, transport=FakeNetwork())


def test_states_carry_the_numbers_to_the_wire() -> None:
    w = world()
    ids = [1, 2]
    for _ in range(3):
        w.round(view(1, ids))
        ids.append(3)
    w.network.endpoint(ADDRESS).duplicate = 1
    w.round(view(1, ids))
    w.settle()
    state = w.state()
    assert (state.name, state.method, state.address) == ("scripted", "ngram", ADDRESS)
    assert state.draft_blocks == state.wait_count == sum(state.wait_counts) == 4
    message = state.to_proto()
    assert (message.state, message.detail) == ("connected", "")
    assert dict(message.dropped) == {"duplicate": 1}
    assert (message.draft_blocks, message.lookahead_misses) == (4, 3)
