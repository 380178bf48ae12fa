"""What a proposer is told: opens, commits, closes, and never more than it can hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.scripted_proposer import ScriptedProposer, capabilities
from tests.verifier_service.proposer_world import World, view, world
from verifier_service import proposer_mirror
from verifier_service.messages import Sampling


def test_first_sight_opens_and_later_rounds_commit() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    ids = [5, 6, 7]
    sampling = Sampling(temperature=0.5, top_k=3, top_p=0.75, seed=-2)
    first = view(9, ids, sampling=sampling, cache_salt="s", prompt_length=3)
    assert w.round(first)[9][0].token_ids == (8, 9, 10, 11)
    ids += [8, 9, 1]
    later = replace(first, proposer="scripted", drafted=4, accepted=2)
    assert w.round(later)[9][0].token_ids == (2, 3, 4, 5)
    opened, committed = (step.updates[0] for step in proposer.steps)
    assert opened.open.offset == 0
    assert list(opened.open.token_ids) == [5, 6, 7]
    assert (opened.open.prompt_length, opened.open.cache_salt, opened.open.more) == (3, "s", False)
    told = opened.open.sampling
    assert (told.temperature, told.top_k, told.top_p) == (0.5, 3, 0.75)
    assert told.seed == 2**64 - 2
    assert committed.epoch == opened.epoch
    assert committed.commit.base_length == 3
    assert list(committed.commit.token_ids) == [8, 9, 1]
    assert (committed.commit.proposer, committed.commit.drafted, committed.commit.accepted) == (
        "scripted",
        4,
        2,
    )


def test_one_message_carries_all_sequences() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    drafts = w.round(*(view(i, [i, i]) for i in range(8)))
    assert len(proposer.steps) == 1
    assert {i: blocks[0].token_ids[0] for i, blocks in drafts.items()} == {
        i: i + 1 for i in range(8)
    }


def test_no_wish_still_commits_and_is_not_waited_for() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.network.endpoint("unix:a").held = True
    ids = [1, 2]
    for _ in range(3):
        drafts, elapsed = w.timed_round(view(1, ids, k=0))
        assert (drafts, elapsed) == ({}, 0.0)
        ids.append(3)
    w.settle()
    assert proposer.sequences[1].ids == [1, 2, 3, 3]


def test_nothing_new_is_not_sent() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2], k=0))
    w.round(view(1, [1, 2], k=0))
    w.round()
    w.settle()
    assert len(proposer.steps) == 1


def test_asking_again_without_new_ids_is_answered() -> None:
    w = world()
    assert w.round(view(1, [1, 2]))[1][0].token_ids == (3, 4, 5, 6)
    assert w.round(view(1, [1, 2], k=2))[1][0].token_ids == (3, 4)


def test_long_prompts_open_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer_mirror, "OPEN_CHUNK_IDS", 4)
    proposer = ScriptedProposer()
    w = world(proposer)
    ids = list(range(10))
    assert w.round(view(1, ids))[1][0].token_ids == (10, 11, 12, 13)
    updates = proposer.steps[0].updates
    assert [(u.open.offset, u.open.more, u.max_draft_tokens) for u in updates] == [
        (0, True, 0),
        (4, True, 0),
        (8, False, 4),
    ]
    assert proposer.sequences[1].ids == ids


def test_opens_beyond_a_steps_budget_go_on_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer_mirror, "OPEN_CHUNK_IDS", 4)
    monkeypatch.setattr(proposer_mirror, "OPEN_IDS_PER_STEP", 6)
    proposer = ScriptedProposer()
    w = world(proposer)
    long, short = list(range(10)), [50, 51]
    assert w.round(view(1, long), view(2, short)) == {}
    long.append(10)
    drafts = w.round(view(1, long), view(2, short))
    assert set(drafts) == {1}
    assert proposer.sequences[1].ids == long
    assert set(w.round(view(1, long), view(2, short))) == {1, 2}
    assert all(sum(len(u.open.token_ids) for u in s.updates) <= 6 for s in proposer.steps)


def test_a_sequence_that_closes_before_its_open_was_sent_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proposer_mirror, "OPEN_IDS_PER_STEP", 6)
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, list(range(6))), view(2, [1, 2]))
    w.round(closed=((1, True), (2, False)))
    w.settle()
    assert proposer.closes == [(1, True)]


def test_an_open_that_replaces_what_is_held_is_closed_even_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2, 3]))
    monkeypatch.setattr(proposer_mirror, "OPEN_IDS_PER_STEP", 2)
    w.round(view(2, [1, 2]), view(1, [1, 2]))
    w.round(closed=((1, False),))
    w.settle()
    assert proposer.closes == [(1, False)]


def test_fewer_ids_than_were_sent_open_again_with_a_new_epoch() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2, 3]))
    epoch = proposer.sequences[1].epoch
    assert w.round(view(1, [7, 8]))[1][0].token_ids == (9, 10, 11, 12)
    assert proposer.sequences[1].epoch > epoch


def test_closes_are_told_once_with_whether_they_finished() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]), view(2, [1, 2]))
    w.round(closed=((1, True), (2, False), (99, True)))
    w.round(closed=((1, True),))
    w.settle()
    assert proposer.closes == [(1, True), (2, False)]
    assert proposer.sequences == {}


def test_a_fault_opens_the_sequence_again_and_leaves_the_others() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    one, two = [1, 2], [10, 11]
    w.round(view(1, one), view(2, two))
    epoch = proposer.sequences[1].epoch
    one.append(3)
    two.append(12)
    proposer.faults = [1]
    assert set(w.round(view(1, one), view(2, two))) == {2}
    one.append(4)
    two.append(13)
    drafts = w.round(view(1, one), view(2, two))
    assert drafts[1][0].token_ids == (5, 6, 7, 8)
    assert drafts[2][0].token_ids == (14, 15, 16, 17)
    assert proposer.sequences[1].epoch > epoch
    assert w.state().faults == 1


def test_a_sequence_that_faults_for_ever_is_given_up() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    for _ in range(10):
        proposer.faults = [1]
        w.round(view(1, [1, 2]), view(2, [5]))
    opens = [u for step in proposer.steps for u in step.updates if u.HasField("open")]
    assert len([u for u in opens if u.sequence_id == 1]) == 4
    assert w.state().unserved == {"faulted": 1}
    proposer.faults = []
    assert set(w.round(view(1, [1, 2]), view(2, [5]))) == {2}


def test_what_contradicts_at_the_proposer_is_closed_there() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    proposer.faults = [1]
    w.round(view(1, [1, 2]))
    w.round(closed=((1, False),))
    w.settle()
    assert proposer.closes == [(1, False)]


class TestLimits:
    def proposer(self, **fields: int) -> ScriptedProposer:
        welcome = capabilities()
        for field, value in fields.items():
            setattr(welcome, field, value)
        return ScriptedProposer(welcome=welcome)

    def test_never_more_drafts_than_it_can_give(self) -> None:
        w = world(self.proposer(max_draft_tokens=2))
        assert w.round(view(1, [1]))[1][0].token_ids == (2, 3)

    def test_never_more_sequences_than_it_can_hold(self) -> None:
        proposer = self.proposer(max_sequences=2)
        w = world(proposer)
        views = [view(i, [i]) for i in range(4)]
        assert set(w.round(*views)) == {0, 1}
        w.round(*views)
        assert w.state().unserved == {"over_capacity": 2}
        assert set(w.round(*views[1:], closed=((0, True),))) == {1, 2}
        assert w.state().unserved == {"over_capacity": 2}

    def test_sequences_over_its_context_are_released(self) -> None:
        proposer = self.proposer(context_limit=6)
        w = world(proposer)
        ids = [1, 2, 3, 4]
        assert w.round(view(1, ids))[1][0].token_ids == (5, 6)
        ids.append(5)
        assert w.round(view(1, ids))[1][0].token_ids == (6,)
        ids.append(6)
        assert w.round(view(1, ids), view(2, [1] * 9)) == {}
        ids.append(7)
        w.round(view(1, ids), view(2, [1] * 9))
        w.settle()
        assert proposer.closes == [(1, False)]
        assert w.state().unserved == {"context_limit": 2}
        assert set(w.round(view(3, [1]), closed=((1, True), (2, True)))) == {3}


class TestSeveral:
    def test_blocks_come_in_the_order_of_the_addresses(self) -> None:
        w = World(
            {
                "unix:b": ScriptedProposer(welcome=capabilities("suffix")),
                "unix:a": ScriptedProposer(welcome=capabilities("ngram")),
            }
        )
        assert [b.proposer for b in w.round(view(1, [1]))[1]] == ["suffix", "ngram"]

    def test_equal_names_get_a_suffix_that_survives_reconnects(self) -> None:
        w = World({f"unix:{i}": ScriptedProposer(welcome=capabilities("ngram")) for i in "abc"})
        assert [s.name for s in w.pool.states()] == ["ngram", "ngram-2", "ngram-3"]
        w.network.break_streams("unix:b")
        w.settle(1.0)
        assert [s.name for s in w.pool.states()] == ["ngram", "ngram-2", "ngram-3"]
        assert [b.proposer for b in w.round(view(1, [1]))[1]] == ["ngram", "ngram-2", "ngram-3"]

    def test_a_name_stays_when_the_first_of_its_name_is_replaced(self) -> None:
        w = World({f"unix:{i}": ScriptedProposer(welcome=capabilities("ngram")) for i in "ab"})
        w.network.kill("unix:a")
        w.network.serve("unix:a", ScriptedProposer(welcome=capabilities("suffix")))
        w.settle(1.0)
        w.network.break_streams("unix:b")
        w.settle(1.0)
        assert [s.name for s in w.pool.states()] == ["suffix", "ngram-2"]

    def test_only_names_the_one_that_is_asked(self) -> None:
        first, second = (ScriptedProposer(welcome=capabilities("ngram")) for _ in "ab")
        w = World({"unix:a": first, "unix:b": second})
        ids = [1]
        assert [b.proposer for b in w.round(view(1, ids, only="ngram-2"))[1]] == ["ngram-2"]
        assert first.steps == []
        assert w.round(view(1, ids, only="nobody")) == {}
        ids += [2]
        drafts = w.round(view(1, ids, proposer="ngram-2", drafted=4, accepted=0))
        assert [b.proposer for b in drafts[1]] == ["ngram", "ngram-2"]

    def test_a_round_that_one_was_not_told_of_is_not_told_as_its_next(self) -> None:
        first, second = (ScriptedProposer(welcome=capabilities("ngram")) for _ in "ab")
        w = World({"unix:a": first, "unix:b": second})
        ids = [1]
        w.round(view(1, ids))
        ids.append(2)
        w.round(view(1, ids, only="ngram-2", proposer="ngram", drafted=4, accepted=0))
        ids.append(3)
        w.round(view(1, ids, proposer="ngram-2", drafted=4, accepted=0))
        (update,) = first.steps[-1].updates
        assert list(update.commit.token_ids) == [2, 3]
        # The last of two rounds must not be told as if it were both.
        assert (update.commit.proposer, update.commit.drafted) == ("", 0)
        assert second.steps[-1].updates[0].commit.drafted == 4

    def test_each_hears_its_own_name_only_for_its_own_drafts(self) -> None:
        first, second = (ScriptedProposer(welcome=capabilities("ngram")) for _ in "ab")
        w = World({"unix:a": first, "unix:b": second})
        ids = [1]
        w.round(view(1, ids))
        ids.append(2)
        w.round(view(1, ids, proposer="ngram-2", drafted=4, accepted=0))
        assert first.steps[-1].updates[0].commit.proposer == "ngram-2"
        assert second.steps[-1].updates[0].commit.proposer == "ngram"
        ids.append(3)
        w.round(view(1, ids, proposer="ngram", drafted=4, accepted=0))
        assert first.steps[-1].updates[0].commit.proposer == "ngram"
        assert second.steps[-1].updates[0].commit.proposer not in ("", "ngram")

    def test_one_without_capacity_does_not_hold_up_the_other(self) -> None:
        small = capabilities("small")
        small.max_sequences = 1
        w = World({"unix:a": ScriptedProposer(welcome=small), "unix:b": ScriptedProposer()})
        drafts = w.round(view(1, [1]), view(2, [1]))
        assert [b.proposer for b in drafts[1]] == ["small", "scripted"]
        assert [b.proposer for b in drafts[2]] == ["scripted"]


def test_a_traced_sequence_is_opened_with_its_context_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proposer_mirror, "OPEN_CHUNK_IDS", 2)
    proposer = ScriptedProposer()
    w = world(proposer)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    w.round(view(1, [1, 2, 3, 4], traceparent=parent), view(2, [1, 2]))
    (step,) = proposer.steps
    told = [(u.sequence_id, u.open.offset, u.open.traceparent) for u in step.updates]
    assert told == [(1, 0, parent), (1, 2, ""), (2, 0, "")]
