"""Series made of a verifier's totals: histograms, proposers, and when they exist."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from speculation.v1 import types_pb2
from speculation.v1 import verifier_pb2 as pb

from gateway.verifier_metrics import VerifierSnapshot


class Place:
    """A verifier as the snapshot sees it."""

    index = 0
    address = "unix:/v"
    problem = ""


Samples = dict[tuple[str, ...], float]


def samples(**totals: Any) -> Samples:
    """Values by name and labels beyond model and engine, in the labels' order."""
    info = pb.GetInfoResponse(model="m", **totals)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(VerifierSnapshot([Place()], [(Place(), info)]))  # type: ignore[list-item]
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k not in BASE)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


BASE = ("model_name", "engine")


def histogram(*counts: int) -> types_pb2.Histogram:
    return types_pb2.Histogram(upper_bounds=[0.001, 0.01, 0.1], counts=counts, sum=0.25)


def test_buckets_are_cumulative_and_end_at_infinity() -> None:
    found = samples(step_times=pb.StepTimes(draft_wait=histogram(1, 0, 4, 2)))
    name = "outrider:draft_wait_seconds"
    bounds = ("0.001", "0.01", "0.1", "+Inf")
    assert [found[f"{name}_bucket", bound] for bound in bounds] == [1, 1, 5, 7]
    assert (found[f"{name}_count",], found[f"{name}_sum",]) == (7, 0.25)


def test_steps_are_told_apart_by_what_they_did() -> None:
    found = samples(
        step_times=pb.StepTimes(
            draft_wait=histogram(0, 0, 0, 0),
            plain=histogram(1, 0, 0, 0),
            verify=histogram(2, 0, 0, 0),
            prefill=histogram(3, 0, 0, 0),
        )
    )
    name = "outrider:verify_seconds_count"
    assert [found[name, step] for step in ("plain", "drafts", "prefill")] == [1, 2, 3]


def test_an_older_verifier_has_no_step_times() -> None:
    assert not [key for key in samples() if "seconds" in key[0]]


def test_a_device_tells_how_long_it_worked() -> None:
    assert samples(device_busy_seconds_total=2.5)["outrider:device_busy_seconds_total",] == 2.5
    assert samples(device_busy_seconds_total=0.0)["outrider:device_busy_seconds_total",] == 0.0


def test_acceptance_by_proposer() -> None:
    found = samples(
        acceptance_by_proposer=[
            pb.ProposerAcceptance(
                name=name, num_spec_steps=a, num_draft_tokens=b, num_accepted_draft_tokens=c
            )
            for name, a, b, c in (("ngram", 3, 9, 4), ("prediction", 2, 8, 7))
        ]
    )
    for name, values in (
        ("drafts", (3, 2)),
        ("draft_tokens", (9, 8)),
        ("accepted_tokens", (4, 7)),
    ):
        series = f"outrider:proposer_{name}_total"
        assert (found[series, "ngram"], found[series, "prediction"]) == values


@pytest.mark.parametrize(("k", "drafted", "told"), [(4, 0, True), (0, 8, True), (0, 0, False)])
def test_acceptance_is_told_where_anything_can_be_accepted(
    k: int, drafted: int, told: bool
) -> None:
    """A verifier without speculation still drafts from requests' predictions."""
    found = samples(
        num_speculative_tokens=k,
        acceptance=types_pb2.AcceptanceStats(num_draft_tokens=drafted, num_spec_tokens=8),
    )
    assert (("vllm:spec_decode_num_draft_tokens_total",) in found) is told
