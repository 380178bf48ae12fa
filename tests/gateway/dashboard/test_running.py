"""The list of running requests: what it shows of each, and that nothing stays on it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.dashboard.running import MAX_LISTED, RunningRequest, RunningRequests


@dataclass
class Growing:
    prompt_tokens: int = 0
    completion_tokens: int = 0


def request(name: str, *choices: Growing, arrived: float = 10.0) -> RunningRequest:
    return RunningRequest(name, "m", "/v1/completions", True, arrived, choices)


def test_a_request_is_listed_while_it_runs() -> None:
    running = RunningRequests()
    with running.listed(request("a")):
        assert [r["request_id"] for r in running.shown(11.0)] == ["a"]
        assert len(running) == 1
    assert running.shown(11.0) == []
    assert len(running) == 0


def test_it_leaves_the_list_however_it_ends() -> None:
    running = RunningRequests()
    with pytest.raises(ValueError, match="broken"), running.listed(request("a")):
        raise ValueError("broken")
    assert len(running) == 0


def test_its_tokens_are_those_of_the_moment() -> None:
    running = RunningRequests()
    choices = Growing(), Growing()
    with running.listed(request("a", *choices)):
        (waiting,) = running.shown(12.5)
        choices[0].prompt_tokens = 7
        choices[0].completion_tokens = 3
        choices[1].completion_tokens = 2
        (begun,) = running.shown(13.0)
    assert waiting["state"] == "waiting"
    assert waiting["age_s"] == 2.5
    assert begun["state"] == "running"
    assert (begun["prompt_tokens"], begun["completion_tokens"], begun["choices"]) == (7, 5, 2)
    assert begun["route"] == "/v1/completions"


def test_the_same_id_twice_is_two_requests() -> None:
    running = RunningRequests()
    with running.listed(request("a")):
        with running.listed(request("a")):
            assert len(running) == 2
        assert len(running) == 1


def test_the_oldest_come_first_and_the_list_is_bounded() -> None:
    running = RunningRequests()
    kept = [running.listed(request(str(i))) for i in range(MAX_LISTED + 5)]
    for entry in kept:
        entry.__enter__()
    assert [r["request_id"] for r in running.shown(0.0)] == [str(i) for i in range(MAX_LISTED)]
    assert len(running) == MAX_LISTED + 5


def test_it_knows_no_text() -> None:
    (shown,) = (request("a", Growing()).shown(11.0),)
    assert set(shown) == {
        *("request_id", "model", "route", "stream", "state", "age_s", "choices"),
        *("prompt_tokens", "completion_tokens"),
    }
