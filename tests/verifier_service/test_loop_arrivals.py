"""Who comes while a step runs: when its prompt is read, and what is begun ahead of it."""

from __future__ import annotations

import pytest

from tests.toy_engine import random_guess
from tests.verifier_service.loop_world import AheadEngine, SpyController, nothing, run
from tests.verifier_service.test_loop import request
from verifier_service.engines.base import Chunk
from verifier_service.messages import Request


def plain(request_id: str, tokens: int) -> Request:
    """One that wants no drafts: steps behind it are begun blindly."""
    one = request(request_id, tokens)
    one.num_speculative_tokens = 0
    return one


def kinds(steps: list[list[Chunk]]) -> list[str]:
    """A letter for each chunk of each step: a round, or a part of a prompt."""
    return ["".join("r" if len(c.ids) == c.drafts + 1 else "p" for c in step) for step in steps]


def test_who_comes_while_a_step_runs_joins_the_one_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = run(monkeypatch, nothing, lambda _: True, [plain("a", 12)], late=(4, plain("b", 4)))
    # It came during the fourth step; the fifth was begun blindly, the prompt beside the round.
    assert kinds(seen.engine.steps)[:7] == ["p", "r", "r", "r", "rp", "rr", "rr"]
    assert seen.engine.sure[:7] == [True] * 7
    assert [begins for _, begins in seen.engine.asked][:7] == [True] * 7
    assert seen.engine.joined[:6] == [0, 0, 0, 1, 0, 0]
    alone = run(monkeypatch, nothing, lambda _: True, [plain("a", 12)])
    assert seen.tokens[0] == alone.tokens[0]
    assert len(seen.tokens[1]) == 4


def test_who_comes_joins_what_is_begun_after_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")], late=(4, request("b", 4)))
    assert not seen.engine.sure[3]
    assert kinds(seen.engine.steps)[:6] == ["p", "r", "r", "r", "rp", "rr"]
    # Behind the prompt there is nothing yet: nobody has looked ahead of it.
    assert [begins for _, begins in seen.engine.asked][2:5] == [True, True, False]


def test_a_prompt_is_planned_where_the_step_is_held_for_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = run(monkeypatch, nothing, lambda _: False, [request("a")], late=(4, request("b", 4)))
    assert kinds(seen.engine.steps)[:6] == ["p", "r", "r", "r", "rp", "rr"]
    begun = [begins for _, begins in seen.engine.asked]
    assert begun[2:5] == [False] * 3
    assert sum(seen.engine.joined) == 0


def test_pauses_behind_a_prompt_are_weighed_by_all_who_decode_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: list[int] = []
    monkeypatch.setattr(SpyController, "weigh_behind", lambda _, rows: weighed.append(rows))
    seen = run(monkeypatch, nothing, lambda _: True, [request("a")], late=(4, request("b", 4)))
    assert kinds(seen.engine.steps)[:6] == ["p", "r", "r", "r", "rp", "rr"]
    assert weighed[:6] == [1, 1, 1, 1, 2, 2]


def test_launching_prompts_for_long_is_no_standing_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AheadEngine, "launch_ns", 25_000_000)
    seen = run(
        monkeypatch,
        random_guess,
        lambda _: False,
        [request("a")],
        late=(2, request("b", 4)),
        foresees=True,
    )
    assert "rp" in kinds(seen.engine.steps)
    # Every step was planned, and on this clock that takes no time.
    assert len(seen.controller.held) > 3
    assert seen.controller.held == [0.0] * len(seen.controller.held)


def test_who_waits_for_a_seat_keeps_nobody_from_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four may run.
    requests = [plain(name, 3 + 2 * number) for number, name in enumerate("abcd")]
    requests.append(plain("e", 3))
    seen = run(monkeypatch, nothing, lambda _: True, requests)
    steps = kinds(seen.engine.steps)
    first = next(number for number, step in enumerate(steps) if "p" in step and "r" in step)
    # Its prompt is read when a seat is free, beside the three that are left: behind the step that
    # was begun before the seat was known to be free.
    assert steps[first - 1 : first + 1] == ["rrr", "rrrp"]
    begun = [begins for _, begins in seen.engine.asked]
    assert begun[1:first] == [True] * (first - 1)
    assert [len(tokens) for tokens in seen.tokens] == [3, 5, 7, 9, 3]


def test_who_comes_while_all_seats_are_taken_keeps_nobody_from_going_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = [request(name, 9) for name in "abcd"]
    seen = run(monkeypatch, nothing, lambda _: True, requests, late=(4, request("e", 3)))
    full = next(n for n, step in enumerate(kinds(seen.engine.steps)) if step == "rrrr")
    assert full < 3
    assert not seen.engine.sure[3]
    assert [begins for _, begins in seen.engine.asked][full:6] == [True] * (6 - full)
    assert len(seen.tokens[4]) == 3
