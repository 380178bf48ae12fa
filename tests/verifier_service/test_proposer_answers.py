"""What is taken from a proposer: the stale rule, garbage, floods; never an exception."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation.v1 import proposer_pb2, types_pb2

from outrider.scripted_proposer import ScriptedProposer
from tests.verifier_service.proposer_world import ADDRESS, view, world
from verifier_service.proposer_state import LinkState

Response = proposer_pb2.ProposeResponse


def spoiling(change: Callable[[proposer_pb2.Drafts], None]) -> ScriptedProposer:
    """A proposer whose drafts are changed before they are sent."""

    def spoil(response: Response) -> Iterable[Response | bytes]:
        if response.HasField("drafts"):
            change(response.drafts)
        yield response

    return ScriptedProposer(spoil=spoil)


def on_first(change: Callable[[proposer_pb2.DraftBlock], None]) -> ScriptedProposer:
    """A proposer whose block for sequence 1 is changed."""

    def change_drafts(drafts: proposer_pb2.Drafts) -> None:
        for block in drafts.blocks:
            if block.sequence_id == 1:
                change(block)

    return spoiling(change_drafts)


def set_to(**fields: object) -> Callable[[proposer_pb2.DraftBlock], None]:
    def change(block: proposer_pb2.DraftBlock) -> None:
        for field, value in fields.items():
            if isinstance(value, list):
                block.ClearField(field)  # type: ignore[arg-type]
                getattr(block, field).extend(value)
            else:
                setattr(block, field, value)

    return change


def unsound_q(block: proposer_pb2.DraftBlock) -> None:
    block.q.row_lengths.append(3)


GARBAGE = [
    (set_to(epoch=77), "stale"),
    (set_to(base_length=1), "stale"),
    (set_to(base_length=3), "stale"),
    (set_to(sequence_id=404), "unknown_sequence"),
    (set_to(token_ids=[1] * 5), "too_long"),
    (set_to(token_ids=[1000]), "out_of_range"),
    (set_to(token_ids=[-5]), "out_of_range"),
    (set_to(parents=[-1, -1, -1, -1]), "tree"),
    (set_to(q_form=types_pb2.Q_FORM_DENSE), "unsupported_q_form"),
    (set_to(q_form=types_pb2.Q_FORM_SPARSE), "unsupported_q_form"),
    (set_to(confidences=[float("nan")] * 4), "bad_confidence"),
    (set_to(match_length=4_000_000_000), "bad_match_length"),
    (unsound_q, "bad_q"),
]


@pytest.mark.parametrize(("change", "reason"), GARBAGE)
def test_a_bad_block_is_dropped_and_harms_no_other_sequence(
    change: Callable[[proposer_pb2.DraftBlock], None], reason: str
) -> None:
    w = world(on_first(change))
    drafts, elapsed = w.timed_round(view(1, [1, 2]), view(2, [5, 6]))
    assert set(drafts) == {2}
    assert drafts[2][0].token_ids == (7, 8, 9, 10)
    assert w.state().dropped == {reason: 1}
    assert elapsed == 0.0
    assert w.link() is LinkState.CONNECTED


def test_two_blocks_for_one_sequence() -> None:
    def twice(drafts: proposer_pb2.Drafts) -> None:
        copy = drafts.blocks.add()
        copy.CopyFrom(drafts.blocks[0])
        copy.token_ids[:] = [9, 9]

    w = world(spoiling(twice))
    assert [b.token_ids for b in w.round(view(1, [1, 2]))[1]] == [(3, 4, 5, 6)]
    assert w.state().dropped == {"duplicate": 1}


def test_a_block_that_was_not_asked_for() -> None:
    def add(drafts: proposer_pb2.Drafts) -> None:
        drafts.blocks.add(
            sequence_id=2, epoch=2, base_length=1, token_ids=[3], q_form=types_pb2.Q_FORM_ONE_HOT
        )

    w = world(spoiling(add))
    w.network.advance()
    assert set(w.round(view(1, [1, 2]), view(2, [1], k=0))) == {1}
    assert w.state().dropped == {"unasked": 1}


def test_a_message_of_more_blocks_than_sequences_it_can_hold() -> None:
    def swell(drafts: proposer_pb2.Drafts) -> None:
        for _ in range(100):
            drafts.blocks.add().CopyFrom(drafts.blocks[0])

    w = world(spoiling(swell))
    assert w.round(view(1, [1, 2])) == {}
    assert w.state().dropped == {"too_many_blocks": 101}


@pytest.mark.parametrize("message", [b"\xff\xff\xff", b"", b"\x12\x05\x10"])
def test_bytes_that_are_no_message(message: bytes) -> None:
    def spoil(response: Response) -> Iterable[Response | bytes]:
        yield message
        yield response

    w = world(ScriptedProposer(spoil=spoil))
    assert set(w.round(view(1, [1, 2]))) == {1}
    assert w.state().dropped == {"unparsable": 1}


def test_a_second_welcome() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    proposer.push(Response(welcome=proposer_pb2.Welcome(capabilities=proposer.welcome)))
    w.settle()
    assert w.state().dropped == {"unexpected_welcome": 1}
    assert set(w.round(view(1, [1, 2]))) == {1}


def test_a_duplicated_answer_counts_once() -> None:
    w = world()
    w.network.endpoint(ADDRESS).duplicate = 1
    assert len(w.round(view(1, [1, 2]))[1]) == 1
    w.settle()
    assert w.state().dropped == {"duplicate": 1}
    assert w.state().draft_blocks == 1


def test_answers_out_of_order() -> None:
    w = world()
    ids = [1, 2]
    w.network.endpoint(ADDRESS).reorder = True
    assert w.round(view(1, ids)) == {}
    ids.append(3)
    # The answer to this step comes first, the one to the step before it second.
    assert w.round(view(1, ids))[1][0].token_ids == (4, 5, 6, 7)
    w.settle()
    assert w.state().dropped == {"stale": 1}


def test_an_answer_to_a_step_that_was_never_sent() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    proposer.push(Response(drafts=proposer_pb2.Drafts(step_id=999)))
    w.settle()
    assert w.state().dropped == {"unknown_step": 1}


def test_late_is_dropped_and_the_next_round_is_whole() -> None:
    w = world()
    endpoint = w.network.endpoint(ADDRESS)
    endpoint.delay = 0.015
    ids = [1, 2]
    drafts, elapsed = w.timed_round(view(1, ids))
    assert drafts == {}
    assert elapsed == pytest.approx(0.010)
    w.settle(0.01)
    assert w.state().dropped == {"late": 1}
    endpoint.delay = 0.0
    ids.append(3)
    assert w.round(view(1, ids))[1][0].base_length == 3


def test_a_lost_answer_costs_one_deadline_only() -> None:
    w = world()
    w.network.endpoint(ADDRESS).drop = 1
    ids = [1, 2]
    assert w.timed_round(view(1, ids)) == ({}, pytest.approx(0.010))
    ids.append(3)
    drafts, elapsed = w.timed_round(view(1, ids))
    assert (set(drafts), elapsed) == ({1}, 0.0)


def test_a_block_arriving_after_the_close_is_nobodys() -> None:
    w = world()
    w.network.endpoint(ADDRESS).held = True
    w.round(view(1, [1, 2]))
    w.round(closed=((1, False),))
    w.network.release(ADDRESS)
    w.settle()
    assert w.state().dropped == {"late": 1}
    assert w.round() == {}


def test_blocks_nobody_collected_are_not_the_next_rounds() -> None:
    w = world()
    w.pool.send([view(1, [1, 2])], [])
    w.settle()
    w.network.endpoint(ADDRESS).held = True
    w.pool.send([view(1, [1, 2, 3])], [])
    assert w.pool.collect() == {}


def test_a_fault_takes_the_block_beside_it_along() -> None:
    def blame(drafts: proposer_pb2.Drafts) -> None:
        drafts.faults.add(sequence_id=1, epoch=drafts.blocks[0].epoch, reason="confused")

    w = world(spoiling(blame))
    assert set(w.round(view(1, [1, 2]), view(2, [5]))) == {2}
    assert w.state().faults == 1


def test_a_fault_of_an_old_epoch_or_an_unknown_sequence_is_cured_already() -> None:
    def blame(drafts: proposer_pb2.Drafts) -> None:
        drafts.faults.add(sequence_id=1, epoch=77, reason="old")
        drafts.faults.add(sequence_id=9, epoch=1, reason="unknown")

    w = world(spoiling(blame))
    assert set(w.round(view(1, [1, 2]))) == {1}
    assert w.state().faults == 0


def test_collecting_twice_gives_blocks_once() -> None:
    w = world()
    w.round(view(1, [1, 2]))
    assert w.pool.collect() == {}


def test_a_flood_is_quarantined_and_forgiven_later() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    for _ in range(500):
        if proposer.reply is not None:
            proposer.push(Response(drafts=proposer_pb2.Drafts(step_id=999)))
            w.network.advance()
    assert w.link() is LinkState.QUARANTINED
    assert "far more messages" in w.state().detail
    assert 64 <= w.state().dropped["unknown_step"] < 100
    assert proposer.reply is None
    assert w.timed_round(view(1, [1, 2])) == ({}, 0.0)
    w.settle(3.0)
    assert w.link() is LinkState.QUARANTINED
    w.settle(4.0)
    assert w.link() is LinkState.CONNECTED
    assert set(w.round(view(1, [1, 2]))) == {1}


def test_quarantine_grows_with_each_flood() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)

    def flood_and_time() -> float:
        while proposer.reply is not None:
            proposer.push(b"\xff")
            w.network.advance()
        start = w.network.now()
        while w.link() is not LinkState.CONNECTED:
            w.settle(0.5)
        return w.network.now() - start

    first, second, third = (flood_and_time() for _ in range(3))
    assert first < second < third


def test_a_flood_in_every_answer_stops_within_one_step() -> None:
    def spoil(response: Response) -> Iterable[Response | bytes]:
        yield from [response] * 1000

    w = world(ScriptedProposer(spoil=spoil))
    assert set(w.round(view(1, [1, 2]))) == {1}
    w.settle()
    assert w.link() is LinkState.QUARANTINED
    assert w.state().dropped["duplicate"] < 100


def test_messages_in_proportion_to_steps_are_no_flood() -> None:
    def spoil(response: Response) -> Iterable[Response | bytes]:
        yield from [response] * 10

    w = world(ScriptedProposer(spoil=spoil))
    ids = [1, 2]
    for _ in range(50):
        assert set(w.round(view(1, ids))) == {1}
        ids.append(3)
        w.settle()
    assert w.link() is LinkState.CONNECTED


def test_one_log_line_for_each_kind_then_one_a_minute_with_the_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    w = world(on_first(set_to(token_ids=[1000])))
    ids = [1, 2]
    for _ in range(40):
        w.round(view(1, ids))
        ids.append(3)
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1
    assert "scripted (unix:a): dropped as out_of_range" in lines[0]
    w.settle(61.0)
    w.round(view(1, ids))
    w.round(view(1, [*ids, 3]))
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 2
    assert "40 since the last such line" in lines[1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_raise_on_the_engines_thread(messages: list[bytes]) -> None:
    def spoil(response: Response) -> Iterable[Response | bytes]:
        yield from messages
        yield response

    w = world(ScriptedProposer(spoil=spoil))
    ids = [1, 2]
    for _ in range(2):
        for blocks in w.round(view(1, ids)).values():
            assert all(0 <= i < 1000 for b in blocks for i in b.token_ids)
        ids.append(3)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_flipped_bytes_never_make_a_wrong_base(data: st.DataObject) -> None:
    def spoil(response: Response) -> Iterable[Response | bytes]:
        raw = bytearray(response.SerializeToString())
        for _ in range(data.draw(st.integers(0, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        yield bytes(raw)

    w = world(ScriptedProposer(spoil=spoil))
    ids = {1: [1, 2], 2: [5]}
    for _ in range(3):
        drafts = w.round(*(view(i, held) for i, held in ids.items()))
        for sequence_id, blocks in drafts.items():
            for block in blocks:
                assert block.base_length == len(ids[sequence_id])
                assert 1 <= len(block.token_ids) <= 4
                assert all(0 <= token_id < 1000 for token_id in block.token_ids)
        for held in ids.values():
            held.append(3)
