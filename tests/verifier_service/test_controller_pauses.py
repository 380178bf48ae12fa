"""When the controller has a step wait, or planned with drafts instead of begun ahead."""

from collections.abc import Sequence

import pytest

from outrider.draft_schedule import DraftSchedule
from verifier_service.candidates import Candidate
from verifier_service.controller import Controller
from verifier_service.costs import CostTable
from verifier_service.messages import DraftBlock

COSTS = {1: 0.0050, 32: 0.0055, 128: 0.0075}


def controller(*, adaptive: bool = True) -> Controller:
    return Controller(4, CostTable.from_profile(COSTS), adaptive=adaptive)


def asked(sequence_id: int, blocks: Sequence[DraftBlock] = ()) -> Candidate:
    return Candidate(sequence_id, blocks, 4, 100, 4, True, False)


def switched_off() -> Controller:
    """Off for good reasons: asking cost 3 ms a step and brought nothing."""
    control = controller()
    for _ in range(200):
        control.begin(1)
        control.plan([asked(1)])
        control.observe_wait(0.003)
    assert control.state().startswith("off")
    assert control.most_wanted(1) == 0
    return control


def test_asking_behind_a_launch_needs_no_leave() -> None:
    control = switched_off()
    wanted = []
    for _ in range(8):
        control.begin(1, begun=True)
        wanted.append(control.most_wanted(1))
        assert not control.waits_for(1) or not wanted[-1]
    assert sorted(wanted) == [0] * 6 + [4] * 2
    # What it was held for is asked for.
    control.begin(1, holding=True)
    assert control.most_wanted(1) == 4
    control.begin(1)
    assert control.most_wanted(1) == 0


def test_proposers_that_share_the_device_are_asked_only_where_they_are_waited_for() -> None:
    control = controller()
    for _ in range(40):
        control.begin(1, begun=True, prepared=False)
        assert control.most_wanted(1) == 0
    control.begin(1, holding=True, prepared=False)
    assert control.most_wanted(1) == 4
    assert control.waits_for(1, prepared=False)


def test_what_they_are_held_for_is_asked_and_waited_for_while_off() -> None:
    control = switched_off()
    control.begin(1, holding=True, prepared=False)
    assert control.most_wanted(1) == 4
    # Nobody has been waited for: it is tried.
    assert control.waits_for(1, prepared=False)


def test_plain_periods_and_a_schedule_of_none_hold_nobody_for_them() -> None:
    none = DraftSchedule(((1, 4, 4), (5, 8, 0)))
    control = Controller(4, CostTable.from_profile(COSTS), schedule=none, plain_share=0.5)
    seen = set()
    for _ in range(60):
        control.begin(1, prepared=False)
        control.plan([asked(1)], running=1)
        assert control.may_ask is control.waits_for(1, prepared=False)
        seen.add(control.may_ask)
        control.observe_speed(1, 1, 0.005, drafted=False)
    assert seen == {True, False}
    control.plan([asked(n) for n in range(6)], running=6)
    assert not control.may_ask


def test_where_nobody_looks_few_are_asked() -> None:
    control = controller()
    control.begin(8)
    for _ in range(40):
        control.observe_look(0, 0, holds=False)
        control.observe_look(3, 3, holds=True)
        control.observe_begun(0.0004)
        control.observe_begun(None)

    def asking(unused: int) -> list[int]:
        wanted = []
        for _ in range(8):
            control.begin(8, begun=True, unused=unused)
            wanted.append(control.most_wanted(8))
        return wanted

    assert control.look_cost(8) == pytest.approx(0.0004)
    assert sorted(asking(0)) == [0] * 6 + [4] * 2
    # Drafts that were left are followed by more: that is looked at every time.
    assert asking(3) == [4] * 8


def test_without_adapting_everybody_is_waited_and_held_for() -> None:
    control = controller(adaptive=False)
    for _ in range(20):
        control.begin(32)
        control.observe_waited(32, 0.010)
        control.observe_held(1, 32, 0.010)
    assert control.waits_for(1)
    assert control.holds_for(1)
    assert not control.waits_for(0)
    assert not control.holds_for(0)


def test_a_pause_of_all_is_weighed_against_the_drafts_of_some() -> None:
    control = controller()
    for _ in range(60):
        control.begin(32)
        for number in range(8):
            control.observe_round(
                number, DraftBlock("ngram", 9, (7,)), greedy=True, drafted=1, accepted=1
            )
        control.observe_held(8, 32, 0.0008)
    control.begin(32)
    assert not control.holds_for(1)
    assert control.holds_for(10)


def test_what_was_waited_for_is_told_from_what_was_known() -> None:
    for known in (False, True):
        control = controller()
        block = DraftBlock("ngram", 9, (7,), lookahead_hit=known)
        for _ in range(200):
            control.begin(1)
            control.observe_waited(1, 0.0015)
            control.observe_round(1, block, greedy=True, drafted=1, accepted=1)
        control.begin(1)
        assert control.waits_for(1) is not known


def test_a_plain_period_is_plain() -> None:
    control = Controller(4, CostTable.from_profile(COSTS), plain_share=0.5)
    seen = set()
    for _ in range(400):
        control.begin(1)
        wanted = control.most_wanted(1)
        seen.add((wanted > 0, control.holds_for(1)))
        control.plan([asked(1)])
        control.observe_speed(1, 1, 0.005, drafted=False)
    assert seen == {(True, True), (False, False)}


def test_what_standing_still_costs_is_explained() -> None:
    control = controller()
    control.begin(8)
    assert "standing still" not in control.explain().figures()
    for _ in range(4):
        control.observe_held(2, 8, 0.0012)
        control.observe_begun(0.0004)
    shown = control.explain()
    assert (shown.hold_ms, shown.look_ms) == (1.2, 0.4)
    # Nothing was verified: a block saves less than it was believed to.
    assert 0.0 < shown.block_tokens < 1.0
    assert "planned with drafts 1.20 ms of standing still (a look 0.40), where" in shown.figures()


def test_a_few_that_decode_already_do_not_wait_alone_for_those_who_are_read() -> None:
    control = controller()
    for decoding in (2, 66):
        control.begin(decoding)
        for _ in range(3):
            control.observe_waited(1, 0.002)
        control.observe_held(1, decoding, 0.001)
    control.begin(2)
    # Two decode, and 64 are about to: a token of one of these is worth a step of 66.
    assert control.waits_for(8, standing=False)
    control.weigh_behind(66)
    assert not control.waits_for(8, standing=False)


@pytest.mark.parametrize(("sequences", "every"), [(1, 4), (32, 4), (64, 8), (128, 16)])
def test_many_sequences_are_asked_about_less_often(sequences: int, every: int) -> None:
    control = switched_off()
    asked = 0
    for _ in range(64):
        control.begin(sequences, begun=True)
        asked += control.most_wanted(sequences) > 0
    assert asked == 64 // every
