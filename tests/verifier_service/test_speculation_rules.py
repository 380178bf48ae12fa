from __future__ import annotations

from typing import Any

import pytest
from speculation.v1 import verifier_pb2 as pb

from verifier_service.request_error import RequestError
from verifier_service.speculation_rules import SpeculationRules, speculation_rules


def rules(
    *,
    ceiling: int = 4,
    predicted_ceiling: int = 4,
    proposers: tuple[str, ...] = ("ngram", "suffix"),
    prediction: str | None = None,
    **params: Any,
) -> SpeculationRules:
    request = pb.GenerateRequest(speculation=pb.SpeculationParams(**params))
    if prediction is not None:
        request.prediction.text = prediction
    return speculation_rules(
        request,
        proposers,
        num_speculative_tokens=ceiling,
        num_prediction_tokens=predicted_ceiling,
    )


def refused(message: str, field: str, **asked: Any) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        rules(**asked)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("params", "drafts"),
    [
        ({}, None),
        ({"enabled": True}, None),
        ({"enabled": False}, 0),
        ({"enabled": False, "num_speculative_tokens": 3}, 0),
        ({"num_speculative_tokens": 0}, 0),
        ({"num_speculative_tokens": 4}, 4),
        ({"enabled": True, "num_speculative_tokens": 1}, 1),
    ],
)
def test_speculation_can_be_turned_off_or_down(params: dict[str, Any], drafts: int | None) -> None:
    assert rules(**params) == SpeculationRules(drafts, "", predicts=False)


def test_more_than_the_ceiling_is_refused_and_the_ceiling_named() -> None:
    refused(
        "^speculative_decoding.num_speculative_tokens 5 is not allowed: it must be from 0 to 4, "
        "this verifier's ceiling$",
        "speculative_decoding.num_speculative_tokens",
        num_speculative_tokens=5,
    )


def test_a_verifier_without_speculation_says_so() -> None:
    assert rules(ceiling=0).num_speculative_tokens is None
    assert rules(ceiling=0, enabled=False).num_speculative_tokens == 0
    assert rules(ceiling=0, num_speculative_tokens=0).num_speculative_tokens == 0
    started = "this verifier was started without speculation"
    refused(started, "speculative_decoding.enabled", ceiling=0, enabled=True)
    field = "speculative_decoding.num_speculative_tokens"
    refused(f"it must be 0: {started}", field, ceiling=0, num_speculative_tokens=1)


def test_a_proposer_is_chosen_among_the_attached() -> None:
    assert rules(proposer="suffix").proposer == "suffix"
    field = "speculative_decoding.proposer"
    refused(
        f"^{field} 'eagle' is not allowed: attached proposers: ngram, suffix$",
        field,
        proposer="eagle",
    )
    refused("attached proposers: none$", field, proposers=(), proposer="eagle")
    # One that has not connected yet may be the one that is meant.
    assert rules(proposer="eagle", proposers=("ngram", "")).proposer == "eagle"


def test_a_prediction_is_used_unless_drafts_are_off() -> None:
    assert rules(prediction="text").predicts
    assert rules(prediction="text", num_speculative_tokens=2).predicts
    assert not rules(prediction="text", enabled=False).predicts
    assert not rules(prediction="text", num_speculative_tokens=0).predicts


def test_a_prediction_has_drafts_where_the_verifier_does_not_speculate_otherwise() -> None:
    asked: dict[str, Any] = {"ceiling": 0, "predicted_ceiling": 8, "prediction": "text"}
    assert rules(**asked) == SpeculationRules(None, "", predicts=True)
    assert rules(**asked, enabled=True).predicts
    assert rules(**asked, num_speculative_tokens=8).num_speculative_tokens == 8
    refused(
        "from 0 to 8",
        "speculative_decoding.num_speculative_tokens",
        **asked,
        num_speculative_tokens=9,
    )


def test_a_verifier_that_drafts_from_no_prediction_says_so() -> None:
    asked: dict[str, Any] = {"ceiling": 0, "predicted_ceiling": 0, "prediction": "text"}
    refused("^prediction is not allowed: .* num_prediction_tokens are 0", "prediction", **asked)
    assert not rules(**asked, enabled=False).predicts


def test_the_prediction_is_the_proposer_of_that_name() -> None:
    alone = rules(prediction="text", proposer="prediction")
    assert alone == SpeculationRules(None, "prediction", predicts=True)
    field = "speculative_decoding.proposer"
    refused(
        "'prediction' is not allowed: the request has no prediction; attached proposers: ngram",
        field,
        proposer="prediction",
    )
    refused(
        "attached proposers: ngram, suffix; the request's own: prediction$",
        field,
        proposer="eagle",
        prediction="text",
    )


def test_a_prediction_whose_drafts_would_not_be_used_is_refused() -> None:
    refused(
        "^prediction is not allowed together with speculative_decoding.proposer 'ngram'",
        "prediction",
        proposer="ngram",
        prediction="text",
    )
