"""Outputs as bytes and back: nothing is lost, and most of them are small."""

from __future__ import annotations

import dataclasses

import pytest

from outrider.acceptance import Round
from tests.fakes import rounds
from verifier_service.core import CoreStats
from verifier_service.engine_process import wire
from verifier_service.messages import FinishReason, Output, TokenLogprob
from verifier_service.prediction import PredictedIds
from verifier_service.proposer_state import LinkState, ProposerState

ROUND = Round(
    base=3,
    offered=5,
    drafted=4,
    accepted=2,
    emitted=3,
    proposer="ngram",
    off_reason="because",
    draft_wait_ns=11,
    verify_ns=12,
    lookahead_hit=True,
    draft_token_ids=(7, 8, 9, 10),
)
TOLD = TokenLogprob(7, -0.25, 1, ((7, -0.25), (8, -1.5)))
FULL = Output(
    token_ids=(7, 8, 5),
    round=ROUND,
    finish_reason=FinishReason.STOP,
    stop_token_id=5,
    cached_prompt_tokens=64,
    error="e",
    refusal="r",
    queue_ns=99,
    logprobs=(TOLD,),
    prompt_logprobs=(TOLD, TOLD),
)


def test_the_examples_leave_no_field_at_its_default() -> None:
    for example in (ROUND, FULL, TOLD):
        for field in dataclasses.fields(example):
            assert getattr(example, field.name) != field.default, field.name


@pytest.mark.parametrize(
    "output",
    [
        Output(),
        FULL,
        Output(token_ids=(1,), round=ROUND),
        Output(token_ids=(1,), round=ROUND, cached_prompt_tokens=3),
        Output(token_ids=(1,), queue_ns=3),
        Output(error="the engine failed"),
        Output(refusal="nothing is allowed"),
        Output(prompt_logprobs=(TOLD,)),
        Output(token_ids=(1,), logprobs=(TOLD,)),
        Output(token_ids=(4, 5), round=ROUND, finish_reason=FinishReason.LENGTH),
        Output(finish_reason=FinishReason.ABORT, stop_token_id=0),
    ],
)
def test_an_output_arrives_as_it_was(output: Output) -> None:
    report = wire.decode_report(wire.encode_report(wire.Report([(17, output)])))
    assert list(report.outputs) == [(17, output)]
    assert report.moment is None


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Output)])
def test_each_field_alone_arrives(field: str) -> None:
    output = Output(**{field: getattr(FULL, field)})
    ((_, arrived),) = wire.unpack(wire.pack([(1, output)]))
    assert arrived == output


def test_outputs_keep_their_order_and_numbers() -> None:
    outputs = [(number, output) for number in (3, 1, 2) for output in rounds(range(6), per_round=2)]
    assert wire.unpack(wire.pack(outputs)) == outputs


def test_a_step_of_many_rounds_is_one_small_message() -> None:
    step = [(number, Output(token_ids=(number, 5), round=ROUND)) for number in range(128)]
    assert len(wire.encode_report(wire.Report(step))) < 128 * 100


def test_a_moment_arrives_with_its_proposers() -> None:
    proposer = ProposerState("ngram", "ngram", "unix:/p", LinkState.SLOW, dropped={"late": 3})
    moment = wire.Moment(CoreStats(running=3, step_cost_ms={1: 4.5}), (proposer,), "why", 9, 2)
    report = wire.decode_report(wire.encode_report(wire.Report((), moment)))
    assert report.moment == moment
    assert report.moment.proposers[0].to_proto() == proposer.to_proto()


def test_a_prediction_travels_with_what_it_has_read() -> None:
    prediction = PredictedIds([4, 5, 6, 7, 5, 8])
    prediction.block([1, 4], 1, 3)
    arrived = wire.decode(wire.encode(prediction))
    assert arrived.block([1, 4, 5], 1, 3) == prediction.block([1, 4, 5], 1, 3) is not None


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (Output(token_ids=(1,)), False),
        (Output(finish_reason=FinishReason.STOP), True),
        (Output(error="e"), True),
        (Output(refusal="r"), True),
    ],
)
def test_the_last_output_says_so(output: Output, last: bool) -> None:
    assert wire.is_last(output) is last
