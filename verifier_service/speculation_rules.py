"""Checks what a request says of its own speculation: on or off, how many drafts, whose.

Knows the verifier's ceilings and the names of proposers; knows no drafts and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from speculation.v1 import verifier_pb2

from verifier_service.field_checks import refused
from verifier_service.messages import PREDICTION
from verifier_service.request_error import RequestError, shorten

_FIELD = "speculative_decoding"


@dataclass(frozen=True, slots=True)
class SpeculationRules:
    """A checked request's speculation.

    `num_speculative_tokens` None takes the ceiling, 0 is none; `proposer` empty takes drafts of
    all. `predicts`: the request has a prediction, and drafts from it are wanted.
    """

    num_speculative_tokens: int | None
    proposer: str
    predicts: bool


def speculation_rules(
    request: verifier_pb2.GenerateRequest,
    proposers: Collection[str],
    *,
    num_speculative_tokens: int,
    num_prediction_tokens: int,
) -> SpeculationRules:
    """Check `request.speculation` and what it says of the prediction.

    `proposers` are the attached ones' names; an empty name is one that has not connected yet: then
    any name may be its. The two ceilings are of requests without a prediction and of those with
    one. Raises RequestError naming the field, its value and what is allowed.
    """
    wanted = request.speculation
    predicted = request.HasField("prediction")
    ceiling = num_prediction_tokens if predicted else num_speculative_tokens
    proposer = _proposer(wanted.proposer, proposers, predicted)
    drafts = _drafts(wanted, ceiling)
    if predicted and ceiling == 0 and drafts != 0:
        raise RequestError(
            "prediction is not allowed: this verifier was started with neither speculation nor "
            "drafts from predictions (num_speculative_tokens and num_prediction_tokens are 0)",
            field="prediction",
        )
    return SpeculationRules(drafts, proposer, predicted and drafts != 0)


def _drafts(wanted: verifier_pb2.SpeculationParams, ceiling: int) -> int | None:
    if wanted.HasField("enabled") and not wanted.enabled:
        return 0
    if not wanted.HasField("num_speculative_tokens"):
        if wanted.enabled and ceiling == 0:
            raise refused(
                f"{_FIELD}.enabled",
                "true",
                "this verifier was started without speculation "
                "(num_speculative_tokens is 0); leave it out or send false",
            )
        return None
    value = wanted.num_speculative_tokens
    if value > ceiling:
        raise refused(
            f"{_FIELD}.num_speculative_tokens",
            value,
            f"it must be from 0 to {ceiling}, this verifier's ceiling"
            if ceiling
            else "it must be 0: this verifier was started without speculation",
        )
    return value


def _proposer(name: str, proposers: Collection[str], predicted: bool) -> str:
    field = f"{_FIELD}.proposer"
    attached = f"attached proposers: {', '.join(sorted(filter(None, proposers))) or 'none'}"
    if name == PREDICTION:
        if not predicted:
            raise refused(field, repr(name), f"the request has no prediction; {attached}")
        return name
    if name and name not in proposers and "" not in proposers:
        if predicted:
            attached += f"; the request's own: {PREDICTION}"
        raise refused(field, repr(shorten(name)), attached)
    if name and predicted:
        raise RequestError(
            f"prediction is not allowed together with {field} {shorten(name)!r}, whose drafts "
            f"alone would be used: leave {field} out, or send {PREDICTION!r}",
            field="prediction",
        )
    return name
