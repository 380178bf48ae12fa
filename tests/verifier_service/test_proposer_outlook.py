"""Proposers that say behind which outcomes they have a draft: behind others nobody waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from speculation.v1 import proposer_pb2, types_pb2

from outrider.scripted_proposer import ScriptedProposer
from tests.verifier_service.proposer_world import ADDRESS, DEADLINE_S, World, told, view, world
from verifier_service.proposer_outlook import MAX_NAMED

Response = proposer_pb2.ProposeResponse
# Its own block behind ids that end in 2.
BLOCK = (3, 4, 5, 6)


def nothing(ids: Sequence[int]) -> list[tuple[int, int]]:
    return []


def asked_once(w: World, ids: list[int]) -> None:
    """A round, and the look-ahead for the one behind it; answers are held from here on."""
    w.round(view(1, ids))
    w.settle()
    w.network.endpoint(ADDRESS).held = True


@pytest.mark.parametrize("emitted", [[9], [3], [3, 9], [3, 4], [3, 4, 5, 6, 9]])
def test_an_outcome_that_is_not_named_is_answered_at_once_with_nothing(emitted: list[int]) -> None:
    w = world(ScriptedProposer(ends=nothing))
    ids = [1, 2]
    asked_once(w, ids)
    ids += emitted
    assert w.pool.behind([(1, emitted)]) == (0, 0)
    assert told(w, [view(1, ids)]) == {}
    assert w.timed_round(view(1, ids)) == ({}, 0.0)
    state = w.state()
    assert (state.lookahead_hits, state.lookahead_misses, state.lookahead_none) == (0, 0, 1)
    assert state.to_proto().lookahead_none == 1


def test_the_late_answer_behind_it_is_no_fault() -> None:
    w = world(ScriptedProposer(ends=nothing))
    ids = [1, 2]
    asked_once(w, ids)
    ids += [9]
    w.round(view(1, ids))
    w.network.endpoint(ADDRESS).held = False
    w.settle(DEADLINE_S)
    assert w.state().dropped == {}
    assert w.pool.collect() == {}


@pytest.mark.parametrize("emitted", [[8, 9], [3, 8, 9], [3, 4, 5, 6, 7, 9]])
def test_behind_another_proposers_block_nothing_was_said(emitted: list[int]) -> None:
    w = world(ScriptedProposer(ends=nothing))
    ids = [1, 2]
    asked_once(w, ids)
    ids += emitted
    assert w.pool.behind([(1, emitted)]) != (0, 0)
    assert w.timed_round(view(1, ids))[1] == pytest.approx(DEADLINE_S)
    assert (w.state().lookahead_misses, w.state().lookahead_none) == (1, 0)


def test_an_outcome_that_is_named_but_has_no_block_yet_is_waited_for() -> None:
    w = world(ScriptedProposer(ends=lambda ids: [(1, 9), (0, 7)]))
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    for emitted, known in (([9], True), ([3, 7], True), ([3, 9], False), ([7], False)):
        assert (w.pool.behind([(1, emitted)]) == (0, 0)) is known
    ids += [3, 9]
    (block,) = w.round(view(1, ids))[1]
    assert (block.token_ids, block.lookahead_hit) == ((10, 11, 12, 13), False)
    assert (w.state().lookahead_misses, w.state().lookahead_none) == (1, 0)


def test_an_outcome_that_is_named_and_has_a_block_is_a_hit() -> None:
    proposer = ScriptedProposer(ends=lambda ids: [(0, 7)], outcomes=lambda ids: [([7], [50, 51])])
    w = world(proposer)
    ids = [1, 2]
    asked_once(w, ids)
    assert w.pool.behind([(1, [7])]) != (0, 0)
    drafts, elapsed = w.timed_round(view(1, [1, 2, 7]))
    assert (drafts[1][0].token_ids, elapsed) == ((50, 51), 0.0)


def test_a_claim_holds_for_one_round() -> None:
    w = world(ScriptedProposer(ends=lambda ids: [] if len(ids) == 2 else None))
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [9]
    assert w.round(view(1, ids)) == {}
    w.settle()
    assert w.pool.behind([(1, [9])]) != (0, 0)
    ids += [9]
    assert w.round(view(1, ids))[1]


def test_what_a_claim_said_is_forgotten_with_it() -> None:
    answers = iter([[(0, 7)], [(0, 9)]])
    w = world(ScriptedProposer(ends=lambda ids: next(answers)))
    w.round(view(1, [1, 2], k=2))
    w.settle()
    assert w.pool.behind([(1, [9])]) == (0, 0)
    w.round(view(1, [1, 2], k=4))
    w.settle()
    assert w.pool.behind([(1, [9])]) == (0, 1)
    assert w.pool.behind([(1, [7])]) == (0, 0)


def test_a_claim_is_void_once_the_same_text_is_asked_about_again() -> None:
    answers: Iterator[list[tuple[int, int]] | None] = iter([[], None])
    w = world(ScriptedProposer(ends=lambda ids: next(answers)))
    w.round(view(1, [1, 2], k=2))
    w.settle()
    assert w.pool.behind([(1, [9])]) == (0, 0)
    w.round(view(1, [1, 2], k=4))
    assert w.pool.behind([(1, [9])]) != (0, 0)


def test_what_was_said_behind_some_ids_is_not_said_behind_more() -> None:
    w = world(ScriptedProposer(ends=nothing))
    asked_once(w, [1, 2])
    assert w.pool.behind([(1, [9])]) == (0, 0)
    assert told(w, [view(1, [1, 2, 9])]) == {}
    # One id more, of which nobody has asked.
    assert told(w, [view(1, [1, 2, 9, 9])]) is None


def test_what_was_said_behind_some_ids_is_void_once_they_are_told() -> None:
    answers: Iterator[list[tuple[int, int]] | None] = iter([[], None])
    w = world(ScriptedProposer(ends=lambda ids: next(answers)))
    w.round(view(1, [1, 2]))
    w.settle()
    assert w.pool.behind([(1, [9])]) == (0, 0)
    w.round(view(1, [1, 2, 9], k=2))
    # The same text again: the proposer would be asked for more.
    assert told(w, [view(1, [1, 2, 9], k=4)]) is None


def claim(
    sequence_id: int = 1,
    epoch: int = 1,
    base: int = 2,
    accepted: Sequence[int] = (),
    token_ids: Sequence[int] = (),
    step_id: int = 1,
) -> Response:
    complete = proposer_pb2.CompleteOutcomes(
        sequence_id=sequence_id,
        epoch=epoch,
        base_length=base,
        accepted=accepted,
        token_ids=token_ids,
    )
    return Response(lookahead=proposer_pb2.Lookahead(step_id=step_id, complete=[complete]))


@pytest.mark.parametrize(
    ("message", "dropped"),
    [
        (claim(sequence_id=7), {"stale_lookahead": 1}),
        (claim(epoch=5), {"stale_lookahead": 1}),
        (claim(base=1), {"stale_lookahead": 1}),
        (claim(accepted=[0]), {"bad_complete": 1}),
        (claim(token_ids=[4]), {"bad_complete": 1}),
        (
            claim(accepted=[0] * (MAX_NAMED + 1), token_ids=[4] * (MAX_NAMED + 1)),
            {"bad_complete": 1},
        ),
        # Its step was not answered: the block that it is about is not known.
        (claim(step_id=2), {}),
    ],
)
def test_a_claim_that_is_not_sound_and_current_is_not_believed(
    message: Response, dropped: dict[str, int]
) -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]))
    proposer.push(message)
    w.settle()
    assert w.state().dropped == dropped
    assert w.pool.behind([(1, [9])]) != (0, 0)
    assert w.round(view(1, [1, 2, 9]))[1]


def test_a_claim_that_comes_after_its_round_is_nobodys_fault() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    w.round(view(1, [1, 2]))
    w.round(view(1, [1, 2, 9]))
    proposer.push(claim())
    w.settle()
    assert w.state().dropped == {}
    assert w.pool.behind([(1, [9])]) != (0, 0)


def test_more_blocks_than_are_kept_make_no_claim_false() -> None:
    """What is named and was not kept is waited for as if its block had not come."""
    proposer = ScriptedProposer(
        ends=lambda ids: [(0, token) for token in range(200)],
        outcomes=lambda ids: [([token], [1]) for token in range(200)],
    )
    w = world(proposer)
    asked_once(w, [1, 2])
    assert w.pool.behind([(1, [199])]) != (0, 0)
    assert w.pool.behind([(1, [200])]) == (0, 0)
    assert w.timed_round(view(1, [1, 2, 199]))[1] == pytest.approx(DEADLINE_S)


def test_a_proposer_that_lies_is_believed_and_costs_its_drafts_only() -> None:
    w = world(ScriptedProposer(ends=nothing))
    ids = [1, 2]
    assert w.round(view(1, ids))[1]
    for token in (9, 8, 7):
        w.settle()
        ids.append(token)
        assert w.round(view(1, ids)) == {}
    w.settle()
    assert (w.state().lookahead_none, w.state().dropped) == (3, {})


def test_nothing_is_known_of_a_sequence_that_is_new_or_opening() -> None:
    w = world(ScriptedProposer(ends=nothing))
    assert w.pool.behind([(1, [9])]) != (0, 0)
    w.round(view(1, [1, 2], k=0))
    w.settle()
    assert w.pool.behind([(1, [9])]) != (0, 0)


def test_one_sequence_of_which_nothing_is_known_is_enough() -> None:
    w = world(ScriptedProposer(ends=lambda ids: [] if ids[0] == 1 else None))
    w.round(view(1, [1, 2]), view(2, [5, 6]))
    w.settle()
    assert w.pool.behind([(1, [9])]) == (0, 0)
    assert w.pool.behind([(1, [9]), (2, [9])]) != (0, 0)


def test_who_will_not_be_asked_has_no_draft() -> None:
    w = world(ScriptedProposer(ends=nothing))
    w.round(view(1, [1, 2], only="another"))
    assert w.pool.behind([(1, [9])]) == (0, 0)
    assert World({ADDRESS: ScriptedProposer()}, serve=False).pool.behind([(1, [9])]) == (0, 0)


def test_who_is_too_slow_to_be_waited_for_has_no_draft() -> None:
    w = world()
    ids = [1, 2]
    w.round(view(1, ids))
    w.network.endpoint(ADDRESS).held = True
    for _ in range(3):
        assert w.pool.behind([(1, [9])]) != (0, 0)
        ids.append(9)
        w.round(view(1, ids))
    assert w.pool.behind([(1, [9])]) == (0, 0)


def test_of_a_step_that_was_not_sent_nothing_is_known() -> None:
    w = world(ScriptedProposer(ends=nothing))
    ids = [1, 2]
    asked_once(w, ids)
    # The first of these is covered; the proposer hears of no more than four.
    for token in (9, 8, 7, 6, 5):
        ids.append(token)
        w.pool.send([view(1, ids)], [])
    assert w.pool.behind([(1, [4])]) != (0, 0)


def test_a_few_of_many_sequences_are_not_waited_for() -> None:
    w = world(ScriptedProposer(ends=lambda ids: None if ids[0] == 1 else []))
    texts = [[number, 50] for number in range(1, 33)]
    views = [view(number, ids) for number, ids in enumerate(texts)]
    w.round(*views)
    w.settle()
    for ids in texts:
        ids.append(9)
    w.network.endpoint(ADDRESS).held = True
    assert told(w, views) == {}
    assert w.timed_round(*views) == ({}, 0.0)
    assert (w.state().lookahead_misses, w.state().lookahead_none) == (1, 31)
    w.network.endpoint(ADDRESS).held = False
    w.settle(DEADLINE_S)
    assert w.state().dropped == {}


def test_half_of_the_sequences_are_waited_for() -> None:
    w = world(ScriptedProposer(ends=lambda ids: None if ids[0] % 2 else []))
    texts = [[number, 50] for number in range(1, 33)]
    views = [view(number, ids) for number, ids in enumerate(texts)]
    w.round(*views)
    w.settle()
    for ids in texts:
        ids.append(9)
    assert told(w, views) is None
    assert len(w.round(*views)) >= 16


def test_the_own_block_is_the_answers_also_where_look_ahead_was_used() -> None:
    """A block that was prepared may differ from the answer; ends are named behind the answer."""
    proposer = ScriptedProposer(outcomes=lambda ids: [([7], [50, 51])], ends=nothing)
    w = world(proposer)
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [7]
    assert w.round(view(1, ids))[1][0].token_ids == (50, 51)
    w.settle()
    # It answered 8, 9, 10, 11 itself.
    assert w.pool.behind([(1, [8, 9, 30])]) == (0, 0)
    assert w.pool.behind([(1, [50, 30])]) != (0, 0)


def test_a_block_of_q_form_never_agreed_on_is_no_answer() -> None:
    bad = Response(
        lookahead=proposer_pb2.Lookahead(
            step_id=1,
            blocks=[
                proposer_pb2.OutcomeBlock(
                    base_length=2,
                    outcome_token_ids=[9],
                    block=proposer_pb2.DraftBlock(
                        sequence_id=1,
                        epoch=1,
                        base_length=3,
                        token_ids=[5],
                        q_form=types_pb2.Q_FORM_SPARSE,
                    ),
                )
            ],
        )
    )
    proposer = ScriptedProposer(ends=lambda ids: [(0, 9)])
    w = world(proposer)
    w.round(view(1, [1, 2]))
    proposer.push(bad)
    w.settle()
    assert told(w, [view(1, [1, 2, 9])]) is None
    assert w.round(view(1, [1, 2, 9]))[1][0].token_ids == (10, 11, 12, 13)
    assert w.state().dropped == {"unsupported_q_form": 1}
