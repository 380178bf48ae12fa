"""What is known of proposers' answers before they are asked: just what they then answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from speculation.v1 import proposer_pb2

from outrider.scripted_proposer import ScriptedProposer, capabilities
from tests.verifier_service.proposer_world import ADDRESS, DEADLINE_S, World, told, view, world
from verifier_service.proposer_state import LinkState


def one_outcome(ids: Sequence[int]) -> Iterable[tuple[Sequence[int], Sequence[int]]]:
    yield [ids[-1] + 1, ids[-1] + 2], [500, 501, 502, 503]


def ahead() -> World:
    return world(ScriptedProposer(outcomes=one_outcome))


def test_a_hit_is_foreseen_and_then_comes_true() -> None:
    w = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    foreseen = told(w, [view(1, ids, k=3)])
    assert foreseen is not None
    (block,) = foreseen[1]
    assert (block.token_ids, block.base_length, block.lookahead_hit) == ((500, 501, 502), 4, True)
    assert w.round(view(1, ids, k=3)) == foreseen
    # Nothing was counted for looking.
    assert (w.state().lookahead_hits, w.state().draft_blocks) == (1, 2)


def test_nothing_is_sent_and_nothing_forgotten_by_looking() -> None:
    w = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    before = w.state()
    assert told(w, [view(1, ids)]) == told(w, [view(1, ids)])
    assert w.state() == before


@pytest.mark.parametrize("emitted", [[3], [3, 5], [9], []])
def test_an_answer_that_must_be_waited_for_is_not_foreseen(emitted: list[int]) -> None:
    w = ahead()
    one, two = [1, 2], [10, 11]
    w.round(view(1, one), view(2, two))
    w.settle()
    one += [3, 4]
    two += emitted
    assert told(w, [view(1, one)]) is not None
    assert told(w, [view(1, one), view(2, two)]) is None


def test_a_sequence_that_is_new_is_not_foreseen() -> None:
    w = ahead()
    assert told(w, [view(1, [1, 2])]) is None


@pytest.mark.parametrize("fields", [{"k": 0}, {"only": "another"}])
def test_who_is_not_asked_need_not_answer(fields: dict[str, object]) -> None:
    w = ahead()
    assert told(w, [view(1, [1, 2], **fields)]) == {}  # type: ignore[arg-type]


def test_who_is_not_there_need_not_answer() -> None:
    w = World({ADDRESS: ScriptedProposer()}, serve=False)
    assert w.link() is not LinkState.CONNECTED
    assert told(w, [view(1, [1, 2])]) == {}


def test_one_of_two_that_must_be_waited_for_is_enough() -> None:
    w = World({"unix:a": ScriptedProposer(outcomes=one_outcome), "unix:b": ScriptedProposer()})
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    assert told(w, [view(1, ids)]) is None
    assert told(w, [view(1, ids, only=w.state(0).name)]) is not None


def test_what_was_foreseen_is_told_without_waiting() -> None:
    w = ahead()
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3, 4]
    assert told(w, [view(1, ids)])
    w.network.endpoint(ADDRESS).held = True
    start = w.network.now()
    w.pool.send([view(1, ids)], ())
    w.pool.collect(wait=False)
    assert w.network.now() == start
    w.network.endpoint(ADDRESS).held = False
    w.settle()
    assert w.state().dropped == {}
    # Its look-ahead for the round after it serves the next step.
    ids += [5, 6]
    assert told(w, [view(1, ids)])


def test_collecting_without_waiting_takes_nothing_that_comes_later() -> None:
    w = world()
    w.network.endpoint(ADDRESS).held = True
    w.pool.send([view(1, [1, 2])], ())
    assert w.pool.collect(wait=False) == {}
    w.network.endpoint(ADDRESS).held = False
    w.settle(DEADLINE_S)
    assert w.pool.collect(wait=False) == {}
    # Nobody waited: that it came later is not its fault.
    assert w.state().dropped == {}


def test_that_there_is_no_draft_can_be_foreseen() -> None:
    proposer = ScriptedProposer()
    w = world(proposer)
    ids = [1, 2]
    w.round(view(1, ids))
    message = proposer_pb2.ProposeResponse()
    message.lookahead.step_id = 1
    # Behind 30 there is a draft, of which no block was made; behind nothing else.
    message.lookahead.complete.add(
        sequence_id=1, epoch=1, base_length=2, token_ids=[30], accepted=[0]
    )
    proposer.push(message)
    w.settle()
    assert told(w, [view(1, [*ids, 30])]) is None
    # The second id was its own draft: three is accepted there, and nothing else is.
    assert told(w, [view(1, [*ids, 3, 40])]) == {}
    assert told(w, [view(1, [*ids, 9, 40])]) is None
    assert told(w, [view(1, [*ids, 40])]) == {}
    w.network.endpoint(ADDRESS).held = True
    ids += [40]
    start = w.network.now()
    w.pool.send([view(1, ids)], ())
    assert w.pool.collect() == {}
    assert w.network.now() == start


def test_a_bad_block_is_not_foreseen_but_judged_when_it_is_used() -> None:
    proposer = ScriptedProposer(outcomes=lambda ids: [([ids[-1] + 1], [1000])])
    w = world(proposer)
    ids = [1, 2]
    w.round(view(1, ids))
    w.settle()
    ids += [3]
    assert told(w, [view(1, ids)]) is None
    assert w.state().dropped == {}
    w.round(view(1, ids))
    assert w.state().dropped == {"out_of_range": 1}


def late_answer(w: World, ids: list[int], k: int = 4) -> None:
    """Asked, and not waited for: the answer comes while the step runs."""
    w.pool.send([view(1, ids, k=k)], ())
    assert w.pool.collect(wait=False) == {}
    w.settle()


def test_what_is_left_of_an_answer_that_came_late_is_a_stopgap() -> None:
    w = world(ScriptedProposer())
    ids = [1, 2]
    late_answer(w, ids)
    # It had answered 3, 4, 5, 6, and 3 is what the target said.
    foreseen = w.pool.foreseen([view(1, [*ids, 3])])
    assert (foreseen.unknown, foreseen.blocks) == (1, {})
    (block,) = foreseen.without_waiting()[1]
    assert (block.token_ids, block.base_length, block.lookahead_hit) == ((4, 5, 6), 3, True)
    assert w.pool.behind([(1, [3])]) == (1, 0)
    assert w.state().dropped == {}


@pytest.mark.parametrize("emitted", [[9], [3, 9], [3, 4, 5, 6], [3, 4, 5, 6, 7]])
def test_of_an_answer_that_did_not_come_true_nothing_is_left(emitted: list[int]) -> None:
    w = world(ScriptedProposer())
    ids = [1, 2]
    late_answer(w, ids)
    foreseen = w.pool.foreseen([view(1, [*ids, *emitted])])
    assert (foreseen.unknown, foreseen.without_waiting()) == (1, {})
    assert w.pool.behind([(1, emitted)]) == (0, 1)


def test_a_stopgap_is_cut_to_what_is_wanted() -> None:
    w = world(ScriptedProposer())
    late_answer(w, [1, 2])
    (block,) = w.pool.foreseen([view(1, [1, 2, 3], k=2)]).without_waiting()[1]
    assert block.token_ids == (4, 5)


def test_what_look_ahead_told_goes_before_what_is_left() -> None:
    w = world(ScriptedProposer(outcomes=lambda ids: [([3], [700, 701])]))
    late_answer(w, [1, 2])
    foreseen = w.pool.foreseen([view(1, [1, 2, 3])])
    assert (foreseen.unknown, foreseen.stopgaps) == (0, {})
    assert foreseen.without_waiting()[1][0].token_ids == (700, 701)


def test_where_a_proposer_said_that_it_has_nothing_no_rest_is_taken() -> None:
    w = world(ScriptedProposer(ends=lambda ids: []))
    late_answer(w, [1, 2])
    foreseen = w.pool.foreseen([view(1, [1, 2, 3])])
    assert (foreseen.unknown, foreseen.without_waiting()) == (0, {})
    assert w.pool.behind([(1, [3])]) == (0, 0)


def test_the_next_answer_takes_the_place_of_what_was_left() -> None:
    w = world(ScriptedProposer())
    ids = [1, 2]
    late_answer(w, ids)
    ids += [9]
    late_answer(w, ids)
    (block,) = w.pool.foreseen([view(1, [*ids, 10])]).without_waiting()[1]
    assert block.token_ids == (11, 12, 13)


def test_who_prepares_answers_is_known_of_those_that_are_there() -> None:
    alone = capabilities()
    alone.lookahead = False
    ready, late = ScriptedProposer(outcomes=one_outcome), ScriptedProposer(welcome=alone)
    assert World({"unix:a": ready, "unix:b": late}).pool.looks_ahead
    assert not World({"unix:b": late}).pool.looks_ahead
    # Nobody is there who could be asked for nothing.
    assert World({"unix:b": late}, serve=False).pool.looks_ahead
    assert World({}).pool.looks_ahead
