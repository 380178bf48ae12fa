"""A verifier's present state as JSON: what it last said, and whether it is there."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from speculation.v1 import verifier_pb2 as pb

from gateway.dashboard.snapshot import verifier_object
from gateway.verifier import Verifier
from tests.gateway.dashboard.infos import info


class Seen:
    """What the snapshot reads of a verifier."""

    def __init__(self, last: pb.GetInfoResponse | None, problem: str = "") -> None:
        self.address, self.in_flight, self.info, self.problem = "unix:/v", 3, last, problem


def shown(last: pb.GetInfoResponse | None, problem: str = "") -> dict[str, Any]:
    return verifier_object(cast(Verifier, Seen(last, problem)))


def test_one_that_serves() -> None:
    told = shown(info([(3, 2), (1, 0)]))
    assert told["serves"] is True
    assert told["problem"] is None
    assert (told["info"]["running"], told["info"]["waiting"]) == (2, 1)
    assert told["info"]["acceptance"]["mean_acceptance_length"] == 2.0
    assert told["info"]["acceptance"]["draft_acceptance_rate"] == 0.5
    assert told["info"]["step_cost_ms"] == {"1": 30.0, "4": 33.0}


def test_one_that_never_answered() -> None:
    told = shown(None, "not connected yet")
    assert told["info"] is None
    assert told["serves"] is False
    assert told["problem"] == "not connected yet"


def test_one_that_went_away_runs_nothing() -> None:
    told = shown(info([(3, 2)]), "no connection")
    assert told["serves"] is False
    assert (told["info"]["running"], told["info"]["waiting"]) == (0, 0)
    assert told["info"]["model"] == "m"


def test_proposers_have_their_state_and_their_sums() -> None:
    (proposer,) = shown(info([(3, 2)], hits=4, misses=1))["info"]["proposers"]
    assert proposer["state"] == "connected"
    assert proposer["dropped"] == {"stale": 2}
    assert (proposer["lookahead_hits"], proposer["lookahead_misses"]) == (4, 1)
    assert proposer["acceptance"]["num_accepted_draft_tokens"] == 2


def test_predictions_are_a_proposer_that_nobody_attached() -> None:
    told = info([(3, 2)])
    told.acceptance_by_proposer.append(
        pb.ProposerAcceptance(name="prediction", num_spec_steps=1, num_draft_tokens=4)
    )
    names = [(p["name"], p["state"]) for p in shown(told)["info"]["proposers"]]
    assert names == [("ngram", "connected"), ("prediction", None)]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_json_does_not_know_are_null(value: float) -> None:
    told = info()
    told.speculation.average_gain = value
    shown_ = shown(told)
    assert shown_["info"]["speculation"]["average_gain"] is None
    json.dumps(shown_, allow_nan=False)
