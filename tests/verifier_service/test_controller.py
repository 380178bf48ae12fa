"""The controller's contract, step by step."""

from collections.abc import Iterator, Sequence
from typing import NoReturn

import pytest

from verifier_service.controller import Candidate, Controller, Decision
from verifier_service.costs import CostTable
from verifier_service.messages import DraftBlock, QForm

K = 4
CHEAP = {1: 0.020, 2: 0.0201, 64: 0.0260}
DEAR = {1: 0.020, 2: 0.040, 64: 1.28}


class Sealed(tuple[int, ...]):
    """Token ids whose number may be known and nothing else."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AssertionError("a draft token's id was read")

    def __iter__(self) -> Iterator[int]:
        self._refuse()

    def __getitem__(self, _: object) -> NoReturn:  # type: ignore[override]
        self._refuse()

    def __contains__(self, _: object) -> bool:
        self._refuse()

    def __eq__(self, _: object) -> bool:
        self._refuse()

    def __hash__(self) -> int:
        self._refuse()

    def index(self, *_: object) -> int:
        self._refuse()

    def count(self, _: object) -> int:
        self._refuse()


def block(proposer: str = "ngram", length: int = K, **more: object) -> DraftBlock:
    return DraftBlock(proposer, 9, (7,) * length, **more)  # type: ignore[arg-type]


def candidate(
    sequence_id: int = 1,
    blocks: Sequence[DraftBlock] = (),
    limit: int = K,
    ask: int = K,
    *,
    opted_out: bool = False,
) -> Candidate:
    return Candidate(sequence_id, blocks, limit, 100, ask, True, opted_out)


def controller(profile: dict[int, float] = CHEAP, k: int = K, **more: object) -> Controller:
    return Controller(k, CostTable.from_profile(profile), **more)  # type: ignore[arg-type]


def step(
    control: Controller, accepted: int, blocks: Sequence[DraftBlock] | None = None
) -> Decision:
    """One step of one sequence whose drafts are right up to `accepted`."""
    ask = control.wanted(1, K)
    offered = [block()] if blocks is None else list(blocks)
    (decision,) = control.plan([candidate(blocks=offered if ask else [], ask=ask)])
    rows = 1 + decision.drafted
    control.observe_step(1, rows, 100, control.costs.seconds(rows))
    if decision.block is not None:
        control.observe_round(
            1,
            decision.block,
            greedy=True,
            drafted=decision.drafted,
            accepted=min(accepted, decision.drafted),
        )
    return decision


def test_cheap_drafts_are_verified_and_dear_ones_are_not() -> None:
    (cheap,) = controller().plan([candidate(blocks=[block()])])
    assert cheap == Decision(block(), K)
    (dear,) = controller(DEAR).plan([candidate(blocks=[block()])])
    assert (dear.block, dear.drafted) == (None, 0)
    assert dear.off_reason == (
        "verifying does not pay: 1 draft costs 20.0 ms and is expected to emit 0.60 tokens "
        "(1.00 needed)"
    )


def test_decisions_come_in_the_candidates_order_each_with_its_reason() -> None:
    control = controller()
    # Else the first step would be plain, to measure it.
    control.observe_step(7, 7, 700, control.costs.seconds(7, 7))
    decisions = control.plan(
        [
            candidate(1, [], ask=K),
            candidate(2, [block(length=2)]),
            candidate(3, [block()], opted_out=True),
            candidate(4, [block()], limit=0),
            candidate(5, [], ask=0),
            candidate(6, [block()], limit=1),
            candidate(7, [block(length=0)]),
        ],
        total_context=700,
    )
    assert [d.drafted for d in decisions] == [0, 2, 0, 0, 0, 1, 0]
    assert [d.off_reason for d in decisions] == [
        "no draft offered",
        "",
        "request asked for no speculation",
        "no room for a draft before max_tokens or the context limit",
        "no draft asked for",
        "",
        "no draft offered",
    ]


def test_never_more_than_the_ceiling_the_limit_and_the_block() -> None:
    control = controller(k=3, adaptive=False)
    decisions = control.plan(
        [
            candidate(1, [block(length=9)], limit=9),
            candidate(2, [block(length=9)], limit=2),
            candidate(3, [block(length=1)], limit=9),
        ]
    )
    assert [d.drafted for d in decisions] == [3, 2, 1]


def test_without_adaptation_everything_offered_is_verified() -> None:
    control = controller(DEAR, adaptive=False)
    for _ in range(50):
        decision = step(control, 0)
        assert decision.drafted == K
    assert control.state() == "on"


def test_the_draft_budget_of_a_step_is_kept() -> None:
    for adaptive in (True, False):
        control = controller(adaptive=adaptive)
        offers = [candidate(i, [block()]) for i in range(5)]
        decisions = control.plan(offers, draft_budget=7)
        assert sum(d.drafted for d in decisions) == 7
        none = control.plan(offers, draft_budget=0)
        assert {d.off_reason for d in none} - {""} == ({"the step has no room for drafts"})
        assert sum(d.drafted for d in none) == 0


def test_a_ceiling_of_zero_is_plain_decoding() -> None:
    control = controller(k=0)
    assert control.wanted(1, 5) == 0
    (decision,) = control.plan([candidate(blocks=[block()])])
    assert decision == Decision(None, 0, "num_speculative_tokens is 0")
    assert control.state() == "off: num_speculative_tokens is 0"


def test_a_negative_ceiling_is_refused() -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens is -1"):
        controller(k=-1)


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(ValueError, match=r"draft wait is -0\.5 seconds"):
        controller().observe_wait(-0.5)


def test_an_empty_step_is_planned() -> None:
    assert controller().plan([]) == []


def test_token_ids_are_never_read() -> None:
    """Selection must not peek: what was sampled may not decide what is verified (DESIGN)."""
    control = controller()
    for round_ in range(60):
        blocks = [
            DraftBlock(name, 9, Sealed((1, 2, 3)), q_form=form, match_length=round_ % 7)
            for name, form in (("a", QForm.SPARSE), ("b", QForm.ONE_HOT), ("c", QForm.COUPLED))
        ]
        for decision in control.plan([candidate(1, blocks), candidate(2, blocks[:1])]):
            if decision.block is not None:
                control.observe_round(
                    1, decision.block, greedy=False, drafted=decision.drafted, accepted=round_ % 2
                )
        control.observe_shadow(1, blocks[1], greedy=False, compared=2, matched=1)
        control.observe_step(2, 5, 200, 0.02)
    control.explain()


def test_confidences_of_sampled_drafts_do_not_decide() -> None:
    """A later draft's confidence depends on the earlier draft's sampled value."""

    def decide(confidences: tuple[float, ...]) -> list[int]:
        control = controller({1: 0.02, 2: 0.024, 8: 0.05})
        offers = []
        for _ in range(80):
            sampled = block(q_form=QForm.SPARSE, confidences=confidences)
            (decision,) = control.plan([candidate(blocks=[sampled])])
            if decision.block is not None:
                control.observe_round(
                    1, sampled, greedy=False, drafted=decision.drafted, accepted=1
                )
            offers.append(decision.drafted)
        return offers

    assert decide((0.9, 0.9, 0.9, 0.9)) == decide((0.9, 0.1, 0.1, 0.1))


def test_turns_off_when_drafts_fail_and_says_why() -> None:
    control = controller({1: 0.020, 2: 0.022, 64: 0.2})
    for _ in range(150):
        step(control, 0)
    assert control.state().startswith("off: verifying does not pay: 1 draft costs ")
    assert control.explain().state == control.state()


def test_while_off_a_bounded_share_of_steps_is_a_probe() -> None:
    control = controller({1: 0.020, 2: 0.022, 64: 0.2})
    for _ in range(200):
        step(control, 0)
    probes = sum(step(control, 0).drafted for _ in range(400))
    # A probe costs a tenth of a step, the share is half a percent.
    assert 10 <= probes <= 30


def test_comes_back_on_within_tens_of_steps() -> None:
    control = controller({1: 0.020, 2: 0.022, 64: 0.2})
    for _ in range(300):
        step(control, 0)
    assert control.state() != "on"
    drafted = [step(control, K).drafted for _ in range(60)]
    assert control.state() == "on"
    assert drafted[-10:] == [K] * 10


def test_shadow_evidence_alone_brings_speculation_back() -> None:
    control = controller({1: 0.020, 2: 0.022, 64: 0.2})
    for _ in range(300):
        step(control, 0)
    for _ in range(6):
        control.observe_shadow(1, block(), greedy=True, compared=1, matched=1)
    assert step(control, K).drafted > 0


def test_long_waits_stop_the_asking_but_for_probes() -> None:
    control = controller()
    asked = 0
    for _ in range(300):
        if control.wanted(1, K):
            asked += 1
            control.observe_wait(0.050)
        step(control, 1)
    assert asked < 120
    assert control.state().startswith("off: asking for drafts does not pay: 50.0 ms a step")


def test_one_missed_deadline_is_no_habit() -> None:
    control = controller()
    for _ in range(50):
        control.observe_wait(0.0001)
        step(control, K)
    control.observe_wait(10.0)
    step(control, K)
    assert control.state() == "on"
    assert control.wanted(1, K) == K


def test_a_pause_when_everything_is_new_is_no_habit_either() -> None:
    control = controller()
    asked = 0
    for number in range(100):
        asked += control.wanted(1, K) > 0
        control.observe_wait(0.0001 if number else 0.100)
        step(control, 1)
    assert asked == 100


def test_asking_resumes_when_waits_end() -> None:
    control = controller()
    for wait in [0.05] * 300 + [0.0] * 300:
        if control.wanted(1, K):
            control.observe_wait(wait)
        step(control, K)
    assert control.state() == "on"
    assert control.wanted(1, K) == K


def test_wanted_never_exceeds_limit_or_ceiling() -> None:
    control = controller()
    assert control.wanted(1, 2) == 2
    assert control.wanted(1, 99) == K
    assert control.wanted(1, 0) == 0


def test_of_two_proposers_the_better_is_learnt_for_each_sequence() -> None:
    control = controller()
    good = {1: "a", 2: "b"}
    for _ in range(60):
        candidates = [candidate(i, [block("a"), block("b")]) for i in good]
        for c, decision in zip(candidates, control.plan(candidates), strict=True):
            if decision.block is not None:
                right = decision.block.proposer == good[c.sequence_id]
                control.observe_round(
                    c.sequence_id,
                    decision.block,
                    greedy=True,
                    drafted=decision.drafted,
                    accepted=decision.drafted if right else 0,
                )
    decisions = control.plan([candidate(i, [block("a"), block("b")]) for i in good])
    assert [d.block.proposer for d in decisions if d.block] == ["a", "b"]


def test_the_choice_between_proposers_can_be_replaced() -> None:
    def last(blocks: Sequence[DraftBlock], survivals: Sequence[Sequence[float]]) -> int:
        assert len(survivals) == len(blocks) == 3
        return 2

    control = controller(choose=last)
    blocks = [block("a"), block("b"), block("c")]
    (decision,) = control.plan([candidate(blocks=blocks)])
    assert decision.block is blocks[2]


def test_a_closed_sequence_is_forgotten() -> None:
    control = controller()
    for _ in range(30):
        step(control, 0)
    key = ("ngram", True)

    def chances() -> list[float]:
        drafts = [block(), block()]
        mean = control.estimates.survivals(drafts, [K, K], [1, 2], [key, key]).mean
        return [float(row[0]) for row in mean]

    known, other = chances()
    assert known < other
    control.close(1)
    control.close(99)
    assert chances() == [other, other]


def test_steps_that_prefill_do_not_refresh_the_table() -> None:
    control = controller()
    before = control.costs.milliseconds()
    for _ in range(20):
        control.observe_step(2, 40, 100, 0.5, prefill_tokens=39)
    assert control.costs.milliseconds() == before


def test_prefill_rows_in_a_step_do_not_make_dear_drafts_look_cheap() -> None:
    control = controller({1: 0.020, 2: 0.040, 600: 12.0})
    (decision,) = control.plan([candidate(blocks=[block()])], other_query_tokens=400)
    assert decision.drafted == 0


def test_a_plain_step_is_measured_again_when_the_curve_has_moved() -> None:
    control = controller({1: 0.020, 5: 0.024, 64: 0.1})
    for _ in range(5):
        step(control, K)
    reasons = []
    for _ in range(120):
        (decision,) = control.plan([candidate(blocks=[block()])])
        # The machine got three times slower.
        rows = 1 + decision.drafted
        control.observe_step(1, rows, 100, 3.0 * (0.019 + 0.001 * rows))
        if decision.block is not None:
            control.observe_round(1, block(), greedy=True, drafted=decision.drafted, accepted=3)
        reasons.append(decision.off_reason)
    assert 1 <= reasons.count("a plain step, to measure its cost again") <= 20
    assert control.costs.seconds(1) == pytest.approx(0.060, rel=0.1)
    assert control.costs.seconds(5) == pytest.approx(0.072, rel=0.1)


def test_explain_holds_what_a_log_line_needs() -> None:
    control = controller()
    for _ in range(10):
        step(control, 2)
    shown = control.explain()
    assert shown.state == shown.kind == "on"
    assert shown.ceiling == K
    assert shown.plain_step_ms == pytest.approx(20.0, rel=0.01)
    assert shown.average_gain > 0.3
    assert len(shown.acceptance["ngram/greedy"]) == K
    assert "average gain +" in shown.figures()
    assert "plain step 20.0" in shown.figures()
    assert "ngram/greedy accepts 0." in shown.figures()
    assert shown.attributes()["outrider.speculation.state"] == "on"
    assert shown.attributes()["outrider.speculation.plain_step_ms"] == shown.plain_step_ms
