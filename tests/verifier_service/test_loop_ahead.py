"""The step that is begun before the host has asked for it: when, and what it is said to cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.toy import Toy
from tests.toy_engine import oracle, random_guess
from tests.verifier_service.loop_world import (
    ASKING_NS,
    FORWARD_NS,
    BlindController,
    SeeingSource,
    nothing,
    run,
)
from tests.verifier_service.test_loop import request
from verifier_service.prediction import PredictedIds


def test_asking_is_free_where_no_draft_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")])
    # Behind the prompt's step nothing is begun; for the last token nothing is asked.
    assert seen.controller.waits == pytest.approx([ASKING_NS * 1e-9] + [0.0] * 9)
    assert seen.controller.spent == pytest.approx([FORWARD_NS * 1e-9] * 11)


def test_asking_costs_what_it_takes_where_drafts_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: False, [request("a")])
    # The last step asked for nothing: there is no room for a draft.
    assert [begins for _, begins in seen.engine.asked] == [False] * 11 + [True]
    assert seen.controller.waits == pytest.approx([ASKING_NS * 1e-9] * 10)
    assert seen.controller.spent == pytest.approx([FORWARD_NS * 1e-9] * 11)


def test_drafts_that_are_foreseen_are_verified_and_cost_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = oracle(Toy.target())
    greedy = request("a")
    greedy.sampling = replace(greedy.sampling, temperature=0.0)
    seen = run(monkeypatch, right, lambda _: False, [greedy], foresees=True)
    plain = run(monkeypatch, nothing, lambda _: False, [greedy])
    assert seen.tokens == plain.tokens
    # The prompt's token, then five a step; only the last step has no room for all four.
    assert len(seen.engine.steps) == 4
    assert seen.controller.waits == pytest.approx([0.0] * len(seen.controller.waits))


def test_proposers_are_told_while_the_engine_works(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: False, [request("a")], foresees=True)
    # Each message leaves after its step began and before the forward has taken its time.
    assert seen.source.sent[:11] == [FORWARD_NS * number for number in range(11)]


def test_the_source_is_asked_of_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, random_guess, lambda number: number % 3 > 0, [request("a")])
    plain = run(monkeypatch, nothing, lambda _: True, [request("a")])
    assert seen.tokens == plain.tokens
    told = [ids for outcome in seen.source.outcomes for _, ids in outcome]
    # Of what follows a prompt nobody could have told.
    opening, *rounds = seen.engine.asked
    assert opening[1] is False
    said = [verdict.tokens for verdicts, _ in rounds for verdict in verdicts]
    assert told == said[: len(told)]
    assert len(told) >= len(said) - 1
    assert [begins for _, begins in rounds][: len(told)] == [
        number % 3 > 0 for number in range(1, len(told) + 1)
    ]


def test_nobody_is_asked_of_a_request_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = request("plain", 20)
    plain.num_speculative_tokens = 0
    seen = run(monkeypatch, nothing, lambda _: True, [request("drafts", 12), plain])
    told = {sequence_id for outcome in seen.source.outcomes for sequence_id, _ in outcome}
    assert len(told) == 1
    assert any(begins for verdicts, begins in seen.engine.asked if len(verdicts) == 2)


def test_the_host_is_sure_only_where_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")])
    # There is no room for a draft behind the last step but one.
    assert seen.engine.sure == [False] * 11 + [True]
    plain = request("plain", 12)
    plain.num_speculative_tokens = 0
    seen = run(monkeypatch, nothing, lambda _: True, [plain])
    assert seen.engine.sure == [True] * 12


def test_steps_are_begun_blindly_until_drafts_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeeingSource, "drafts", (4, 5))
    seen = run(
        monkeypatch,
        nothing,
        lambda _: True,
        [request("a")],
        kinds=(SeeingSource, BlindController),
    )
    plain = run(monkeypatch, nothing, lambda _: True, [request("a")])
    assert seen.tokens == plain.tokens
    # What is seen behind the fourth outcome comes too late for the step that was begun already, so
    # the next one is looked for: there are drafts, and it is held.
    assert seen.engine.sure == [True] * 5 + [False] + [True] * 6
    assert [begins for _, begins in seen.engine.asked] == [True] * 5 + [False] + [True] * 6
    controller = seen.controller
    assert controller.looks[:7] == [
        # Behind the prompt.
        (0, 0, False),
        (0, 0, False),
        (0, 0, False),
        (0, 0, False),
        (0, 1, True),
        (1, 1, True),
        (0, 0, False),
    ]
    # The step behind the one that was held was planned; all others were begun without a look.
    assert controller.begun == [None] * len(controller.begun)
    assert len(controller.begun) == 11


def test_what_a_look_takes_is_told_where_a_step_is_begun_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LookingController(BlindController):
        def begins_blindly(self, unused: int) -> bool:
            return False

    monkeypatch.setattr(SeeingSource, "drafts", (4, 5))
    kinds = (SeeingSource, LookingController)
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")], kinds=kinds)
    # The step behind the prompt waited, and two were held for drafts.
    assert len(seen.controller.looks) == 11
    assert seen.controller.begun == [0.0] * 8 + [None]


def test_looks_behind_prompts_are_learnt_from_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (SeeingSource, BlindController)
    monkeypatch.setattr(SeeingSource, "drafts", ())
    seen = run(
        monkeypatch, nothing, lambda _: True, [request("a")], kinds=kinds, late=(4, request("b", 4))
    )
    alone = run(monkeypatch, nothing, lambda _: True, [request("a")], kinds=kinds)
    assert [len(tokens) for tokens in seen.tokens] == [12, 4]
    # As many as without the prompt: the step that read it was looked at as well.
    assert len(seen.controller.looks) == len(alone.controller.looks)


def test_a_prediction_of_its_own_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own = request("a")
    own.prediction = PredictedIds([1, 2, 3, 4, 5])
    seen = run(monkeypatch, nothing, lambda _: True, [own])
    assert seen.engine.asked
    assert not any(begins for _, begins in seen.engine.asked)
