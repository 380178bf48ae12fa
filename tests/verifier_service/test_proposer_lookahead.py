"""Answers prepared ahead: used when exactly their outcome came true, and only then."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import pytest
from speculation.v1 import proposer_pb2, types_pb2

from outrider.scripted_proposer import ScriptedProposer, capabilities
from tests.verifier_service.proposer_world import ADDRESS, World, view, world
from verifier_service import proposer_mirror

Response = proposer_pb2.ProposeResponse


def one_outcome(ids: Sequence[int]) -> Iterable[tuple[Sequence[int], Sequence[int]]]:
    """Guesses that the last id's two successors are emitted, and drafts 500 and on then."""
    yield [ids[-1] + 1, ids[-1] + 2], [500, 501, 502, 503]


def ahead(**fields: object) -> tuple[World, ScriptedProposer]:
    proposer = ScriptedProposer(outcomes=one_outcome, **fields)  # type: ignore[arg-type]
    return world(proposer), proposer


def test_a_hit_is_used_at_once_and_not_waited_for() -> None:
    w, _ = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    w.network.endpoint(ADDRESS).held = True
    drafts, elapsed = w.timed_round(view(1, ids))
    (block,) = drafts[1]
    assert block.token_ids == (500, 501, 502, 503)
    assert (block.base_length, block.lookahead_hit, elapsed) == (4, True, 0.0)
    assert (w.state().lookahead_hits, w.state().lookahead_misses) == (1, 0)


def test_a_hit_needs_no_certain_kind_of_sequence() -> None:
    w, _ = ahead()
    w.round(view(1, (1, 2)))  # type: ignore[arg-type]
    w.settle()
    assert w.round(view(1, (1, 2, 3, 4)))[1][0].lookahead_hit  # type: ignore[arg-type]


def test_the_regular_answer_behind_a_hit_is_ignored_without_blame() -> None:
    w, _ = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    assert w.round(view(1, ids))[1][0].lookahead_hit
    w.settle()
    assert w.state().dropped == {}
    assert w.pool.collect() == {}


@pytest.mark.parametrize("emitted", [[3], [3, 5], [3, 4, 5], [9]])
def test_any_other_outcome_is_a_miss_that_waits(emitted: list[int]) -> None:
    w, _ = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += emitted
    (block,) = w.round(view(1, ids))[1]
    assert not block.lookahead_hit
    assert block.token_ids[0] == emitted[-1] + 1
    assert (w.state().lookahead_hits, w.state().lookahead_misses) == (0, 1)


def test_a_miss_of_one_sequence_waits_for_that_one_only() -> None:
    w, _ = ahead()
    one, two = [1, 2], [10, 11]
    w.round(view(1, one), view(2, two))
    w.settle()
    one += [3, 4]
    two += [99]
    drafts = w.round(view(1, one), view(2, two))
    assert drafts[1][0].lookahead_hit
    assert drafts[2][0].token_ids == (100, 101, 102, 103)
    assert (w.state().lookahead_hits, w.state().lookahead_misses) == (1, 1)


def test_a_miss_that_is_not_answered_keeps_the_other_sequences_hit() -> None:
    w, _ = ahead()
    one, two = [1, 2], [10, 11]
    w.round(view(1, one), view(2, two))
    w.settle()
    one += [3, 4]
    two += [99]
    w.network.endpoint(ADDRESS).held = True
    drafts, elapsed = w.timed_round(view(1, one), view(2, two))
    assert set(drafts) == {1}
    assert elapsed == pytest.approx(0.010)


def test_outcomes_live_for_one_round() -> None:
    w, _ = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [9]
    w.round(view(1, ids, k=0))
    ids += [3, 4]
    assert not w.round(view(1, ids))[1][0].lookahead_hit


def test_a_hit_is_cut_to_what_is_wanted_now() -> None:
    w, _ = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    assert w.round(view(1, ids, k=2))[1][0].token_ids == (500, 501)


def test_nothing_is_used_where_nothing_is_wanted() -> None:
    w, _ = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    assert w.round(view(1, ids, k=0)) == {}
    assert w.state().lookahead_hits == 0


def test_a_reconnect_forgets_outcomes() -> None:
    w, _ = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    w.network.break_streams(ADDRESS)
    w.settle(1.0)
    ids += [3, 4]
    assert not w.round(view(1, ids))[1][0].lookahead_hit


def outcome(
    sequence_id: int = 1,
    epoch: int = 1,
    base: int = 2,
    ids: Sequence[int] = (3,),
    block_base: int = 3,
    draft: Sequence[int] = (7,),
    step_id: int = 1,
) -> Response:
    return Response(
        lookahead=proposer_pb2.Lookahead(
            step_id=step_id,
            blocks=[
                proposer_pb2.OutcomeBlock(
                    base_length=base,
                    outcome_token_ids=ids,
                    block=proposer_pb2.DraftBlock(
                        sequence_id=sequence_id,
                        epoch=epoch,
                        base_length=block_base,
                        token_ids=draft,
                        q_form=types_pb2.Q_FORM_ONE_HOT,
                    ),
                )
            ],
        )
    )


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (outcome(sequence_id=7), "stale_lookahead"),
        (outcome(epoch=5), "stale_lookahead"),
        (outcome(base=1), "stale_lookahead"),
        (outcome(block_base=2), "bad_outcome"),
        (outcome(draft=(1000,)), "out_of_range"),
        (outcome(draft=(1, 2, 3, 4, 5)), "too_long"),
    ],
)
def test_bad_outcomes_are_dropped_and_counted(message: Response, reason: str) -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]))
    proposer.push(message)
    w.settle()
    (block,) = w.round(view(1, [1, 2, 3]))[1]
    assert (block.token_ids, block.lookahead_hit) == ((4, 5, 6, 7), False)
    assert w.state().dropped == {reason: 1}
    assert (w.state().lookahead_hits, w.state().lookahead_misses) == (0, 1)


@pytest.mark.parametrize("message", [outcome(ids=(), block_base=2), outcome(draft=())])
def test_empty_outcomes_are_of_no_use_and_no_harm(message: Response) -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]))
    proposer.push(message)
    w.settle()
    assert not w.round(view(1, [1, 2, 3]))[1][0].lookahead_hit
    assert not w.round(view(1, [1, 2, 3]))[1][0].lookahead_hit
    assert w.state().dropped == {}


def test_outcomes_that_come_after_their_round_are_nobodys_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]), view(2, [5]))
    w.round(view(1, [1, 2, 9]), closed=((2, True),))
    proposer.push(outcome())
    proposer.push(outcome(sequence_id=2, epoch=2, base=1, block_base=2))
    w.settle()
    assert (w.state().dropped, w.state().lookahead_late) == ({}, 2)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_outcomes_of_an_earlier_step_serve_a_sequence_that_waited() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]), view(2, [5]))
    w.round(view(2, [5, 6]))
    proposer.push(outcome())
    w.settle()
    (block,) = w.round(view(1, [1, 2, 3]), view(2, [5, 6]))[1]
    assert (block.token_ids, block.lookahead_hit) == ((7,), True)


def test_outcomes_of_one_sequence_are_bounded() -> None:
    def many(ids: Sequence[int]) -> Iterable[tuple[Sequence[int], Sequence[int]]]:
        for token_id in range(200):
            yield [token_id], [1]

    proposer = ScriptedProposer(outcomes=many)
    w = world(proposer)
    w.round(view(1, [1, 2]))
    w.settle()
    assert w.state().dropped == {"too_many_outcomes": 72}


def test_outcomes_of_a_sequence_whose_open_goes_on_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proposer_mirror, "OPEN_IDS_PER_STEP", 2)
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2, 3]))
    w.settle()
    proposer.push(outcome())
    w.settle()
    assert w.state().dropped == {"stale_lookahead": 1}


def test_a_message_of_absurdly_many_outcomes_is_not_read() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]))
    message = outcome()
    message.lookahead.blocks.extend([message.lookahead.blocks[0]] * 250_000)
    proposer.push(message)
    w.settle()
    assert w.state().dropped == {"too_large": 250_001}


def test_lookahead_that_was_not_announced_is_not_taken() -> None:
    welcome = capabilities()
    welcome.lookahead = False
    proposer = ScriptedProposer(welcome=welcome, outcomes=one_outcome)
    w = world(proposer)
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    assert w.state().dropped == {"unexpected_lookahead": 1}
    ids += [3, 4]
    assert not w.round(view(1, ids))[1][0].lookahead_hit
    assert (w.state().lookahead_hits, w.state().lookahead_misses) == (0, 0)
