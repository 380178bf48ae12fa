"""`num_speculative_tokens_per_batch_size` in the controller and the scheduler."""

from outrider.draft_schedule import DraftSchedule
from tests.toy import Toy
from tests.toy_engine import oracle
from tests.verifier_service.scheduler_bench import Bench, plain, sampling
from tests.verifier_service.test_controller import CHEAP, block, candidate
from verifier_service.controller import Controller
from verifier_service.costs import CostTable

SCHEDULE = DraftSchedule(((1, 2, 4), (3, 4, 2), (5, 8, 0)))


def controller(k: int = 4, *, adaptive: bool = True) -> Controller:
    costs = CostTable.from_profile(CHEAP)
    return Controller(k, costs, adaptive=adaptive, schedule=SCHEDULE)


def test_proposers_are_asked_for_no_more_than_the_schedule_allows() -> None:
    for adaptive in (True, False):
        control = controller(adaptive=adaptive)
        assert [control.wanted(n, 4) for n in range(1, 7)] == [4, 4, 2, 2, 0, 0]
        assert control.wanted(1, 3) == 3


def test_the_schedule_cannot_raise_the_ceiling() -> None:
    control = controller(k=3)
    assert control.wanted(1, 9) == 3
    (decision,) = control.plan([candidate(blocks=[block(length=9)], limit=9)])
    assert decision.drafted == 3


def test_no_more_is_verified_than_the_schedule_allows() -> None:
    for adaptive in (True, False):
        control = controller(adaptive=adaptive)
        candidates = [candidate(i, [block()]) for i in range(3)]
        assert [d.drafted for d in control.plan(candidates)] == [2, 2, 2]
        assert [d.drafted for d in control.plan(candidates[:2])] == [4, 4]


def test_sequences_in_prefill_count_as_running() -> None:
    control = controller()
    (decision,) = control.plan([candidate(blocks=[block()])], running=3)
    assert decision.drafted == 2


def test_a_scheduled_zero_is_told_with_its_reason_and_ends_with_the_crowd() -> None:
    control = controller()
    reason = "num_speculative_tokens_per_batch_size is 0: 6 run"
    decisions = control.plan(
        [candidate(1, [block()]), candidate(2, [block()], opted_out=True)], running=6
    )
    assert [d.off_reason for d in decisions] == [reason, "request asked for no speculation"]
    assert control.state() == f"off: {reason}"
    (decision,) = control.plan([candidate(blocks=[block()])])
    assert decision.drafted == 4
    assert control.state() == "on"


def test_each_step_drafts_by_how_many_sequences_run_then() -> None:
    bench = Bench(
        guess=oracle(Toy.target()), schedule=DraftSchedule(((1, 1, 4), (2, 2, 2), (3, 9, 0)))
    )
    wanted = sampling(temperature=0.0, max_tokens=24)
    for name, most in (("a", 4), ("b", 2), ("c", 0), ("d", 0)):
        bench.add(name, [1, 2, 3], wanted)
        bench.step()
        chunks = bench.step()
        assert max(chunk.drafts for chunk in chunks) == most
    bench.finish()
    assert all(bench.tokens(name) == plain([1, 2, 3], wanted) for name in "abcd")
